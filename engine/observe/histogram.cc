#include "engine/observe/histogram.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

// kCount bounds from `first` on, in steps 1-2-5.
template <size_t kCount>
constexpr std::array<int64_t, kCount> Steps(int64_t first) {
  std::array<int64_t, kCount> bounds{};
  for (size_t i = 0; i < kCount; ++i) {
    bounds[i] = i == 0 ? first : i % 3 == 2 ? bounds[i - 1] / 2 * 5 : bounds[i - 1] * 2;
  }
  return bounds;
}

constexpr auto kPhaseBounds = Steps<16>(kMillisecond / 10);
constexpr auto kCallBounds = Steps<17>(kMillisecond);
constexpr auto kCheckpointBounds = Steps<13>(kSecond / 10);
static_assert(kPhaseBounds.back() == 10 * kSecond);
static_assert(kCallBounds.back() == 200 * kSecond);
static_assert(kCheckpointBounds.back() == 1000 * kSecond);
static_assert(kCallBounds.size() <= HistogramSnapshot::kMaximumBounds);

}  // namespace

BucketBounds PhaseBuckets() { return kPhaseBounds; }
BucketBounds CallBuckets() { return kCallBounds; }
BucketBounds CheckpointBuckets() { return kCheckpointBounds; }

DurationHistogram::DurationHistogram(BucketBounds bounds) : bounds_(bounds) {
  PENSTOCK_CHECK(bounds.size() <= HistogramSnapshot::kMaximumBounds);
}

void DurationHistogram::Observe(int64_t nanos) {
  nanos = std::max<int64_t>(nanos, 0);
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), nanos) - bounds_.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_nanos_.fetch_add(nanos, std::memory_order_relaxed);
}

void DurationHistogram::Add(const HistogramSnapshot& growth) {
  int64_t below = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    counts_[i].fetch_add(growth.cumulative[i] - below, std::memory_order_relaxed);
    below = growth.cumulative[i];
  }
  sum_nanos_.fetch_add(growth.sum_nanos, std::memory_order_relaxed);
}

HistogramSnapshot HistogramSnapshot::Since(const HistogramSnapshot& earlier) const {
  HistogramSnapshot growth = *this;
  for (size_t i = 0; i < cumulative.size(); ++i) growth.cumulative[i] -= earlier.cumulative[i];
  growth.sum_nanos -= earlier.sum_nanos;
  return growth;
}

HistogramSnapshot DurationHistogram::Snapshot() const {
  HistogramSnapshot snapshot;
  snapshot.bounds = bounds_;
  snapshot.sum_nanos = sum_nanos_.load(std::memory_order_relaxed);
  int64_t below = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    below += counts_[i].load(std::memory_order_relaxed);
    snapshot.cumulative[i] = below;
  }
  return snapshot;
}

}  // namespace penstock
