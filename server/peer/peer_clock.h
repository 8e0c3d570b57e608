#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace penstock {

// How far the clock of another process is ahead of ours, and how wrong that may be.
struct ClockOffset {
  int64_t nanos = 0;              // what to take from its times
  int64_t uncertainty_nanos = 0;  // the true offset is at most so far away
};

// Compares the clock of a peer with ours by questions that it answers with its time (Cristian's algorithm).
//
// Model:     The peer read its clock at some time between question and answer: half of the round trip is the doubt. Of the
//            last kSamples that with the least doubt counts, to which its age adds what clocks may drift in that time.
// Threads:   a plain value.
// Units:     nanoseconds of the two monotonic clocks.
class PeerClock {
 public:
  static constexpr size_t kSamples = 32;
  static constexpr int64_t kNanosPerNanoOfDrift = 20'000;  // 50 parts in a million

  // `received_nanos` is no earlier than `sent_nanos`.
  void Add(int64_t sent_nanos, int64_t peer_nanos, int64_t received_nanos);
  // Nothing before the first answer.
  std::optional<ClockOffset> Offset() const;

 private:
  struct Sample {
    ClockOffset offset;
    int64_t received_nanos = 0;
  };
  std::deque<Sample> samples_;
};

}  // namespace penstock
