#pragma once

// Counters, gauges and duration histograms as plain cells: written without a lock, read by anyone.

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "engine/base/check.h"

namespace penstock {

// A number that only rises.
//
// Threads:   any method from any thread; relaxed order.
class CounterCell {
 public:
  void Add(int64_t amount = 1) {
    PENSTOCK_DCHECK(amount >= 0);
    value_.fetch_add(amount, std::memory_order_relaxed);
  }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_ = 0;
};

// A number that goes up and down.
//
// Threads:   any method from any thread; relaxed order.
class GaugeCell {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

// Upper bounds of buckets, in nanoseconds, in steps 1-2-5.
using BucketBounds = std::span<const int64_t>;
BucketBounds PhaseBuckets();       // B1: 0.1 ms to 10 s
BucketBounds CallBuckets();        // B2: 1 ms to 200 s
BucketBounds CheckpointBuckets();  // B3: 0.1 s to 1000 s

// A histogram at one instant.
struct HistogramSnapshot {
  static constexpr int kMaximumBounds = 17;
  BucketBounds bounds;
  std::array<int64_t, kMaximumBounds + 1> cumulative{};  // entry i: values up to bounds[i]; the one after: all values
  int64_t sum_nanos = 0;

  int64_t count() const { return cumulative[bounds.size()]; }
  // What has come since an earlier one of the same histogram.
  HistogramSnapshot Since(const HistogramSnapshot& earlier) const;
};

// Counts durations by size.
//
// Model:     one counter per bucket and one for what is above all bounds; a value equal to a bound is below it.
// Threads:   any method from any thread; Observe() is two relaxed additions. A snapshot beside writers may hold a value
//            in its count and not yet in its sum; no part of a later snapshot is below an earlier one.
// Units:     nanoseconds; a negative duration counts as 0.
class DurationHistogram {
 public:
  explicit DurationHistogram(BucketBounds bounds);

  void Observe(int64_t nanos);
  // Those that another histogram with the same bounds has counted since an earlier snapshot.
  void Add(const HistogramSnapshot& growth);
  HistogramSnapshot Snapshot() const;

 private:
  const BucketBounds bounds_;
  std::array<std::atomic<int64_t>, HistogramSnapshot::kMaximumBounds + 1> counts_{};
  std::atomic<int64_t> sum_nanos_ = 0;
};

}  // namespace penstock
