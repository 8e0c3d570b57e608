#pragma once

#include <cstdint>

namespace penstock {

// Where an inference stands among those of its pipeline that wait, for a place, for a device or for the weights: the
// highest priority first, then the earliest turn of its caller, then the oldest, so that runs finish rather than begin.
struct InferenceOrder {
  int32_t priority = 0;  // higher first
  int64_t turn = 0;      // of its caller among callers; lower first
  int64_t sequence = 0;  // of its start, unique in the pipeline

  bool operator==(const InferenceOrder&) const = default;
  friend bool operator<(const InferenceOrder& one, const InferenceOrder& other) {
    if (one.priority != other.priority) return one.priority > other.priority;
    if (one.turn != other.turn) return one.turn < other.turn;
    return one.sequence < other.sequence;
  }
};

}  // namespace penstock
