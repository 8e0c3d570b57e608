#pragma once

// Decides which inference action a device takes when no training action is ready.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/filling/inference_order.h"
#include "engine/filling/run_forecast.h"

namespace penstock {

// An inference action that could begin now, and what is known about it.
//
// Units:     nanoseconds; times are of the clock, kNever if they don't come.
struct InferenceCandidate {
  const void* pipeline = nullptr;      // whose it is; only compared
  InferenceOrder order = {};           // of its run, in the pipeline
  bool due = false;                    // has waited so long that it goes before training
  bool fills = true;                   // its pipeline's switch: false keeps it out of steps
  int64_t duration = kNever;           // expected; kNever: unknown
  int64_t to_end = 0;                  // until its run can be done on all stages, at the least
  int64_t training_at = kNever;        // when its own pipeline is expected to train on the device
  int64_t weights_change_at = kNever;  // in the open step of its pipeline
  bool operator==(const InferenceCandidate&) const = default;
};

// An inference run that is on its way to the device: its action there can't begin yet.
//
// Units:     nanoseconds of the clock; kNever where nobody knows when.
struct InferenceArrival {
  const void* pipeline = nullptr;  // whose it is; only compared
  InferenceOrder order = {};       // of the run, in the pipeline
  int64_t at = kNever;             // expected
};

// The choice of one device.
//
// Model:     training first: this is only asked when no training action is ready, but for runs that are due. An action
//            fits if the time until training needs the device, by all that is known, is at least four fifths of what
//            the action is expected to take: gaps are often just as long as an action, and both vary. So training pays
//            for a gap with at most a fifth of one action, plus what was foreseen wrongly. An action whose run can't be
//            done on all stages before the weights change is not begun: it would have to be done again. Without
//            training in sight everything fits. Among those that fit, the pipeline that was served longest ago goes
//            first; within it InferenceOrder counts. Runs that are due go before all, in that order.
//            An action is not begun either where a run of its pipeline that goes before it is expected before it would
//            end: actions are not interrupted, so that run would wait. The device rests for at most what the action
//            would take, and once more if the run is late. So a call whose caller has the next turn meets a foreign
//            action on its first stage only: with n stages that take equally long it takes at most (n + 1) / n of its
//            time alone.
// Threads:   one at a time: a device's.
class GapFiller {
 public:
  // The time until which the device may be needed: the earliest that any training run open on it expects; kNever: none
  // is.
  struct Outlook {
    int64_t now = 0;
    int64_t training_at = kNever;
    absl::Span<const InferenceArrival> arrivals = {};
  };
  // The place of the one to take, or nothing.
  std::optional<size_t> Choose(const std::vector<InferenceCandidate>& candidates, const Outlook& outlook) const;
  // The same for runs that are due only: what may go although training is ready.
  static std::optional<size_t> ChooseDue(const std::vector<InferenceCandidate>& candidates);

  static bool Fits(const InferenceCandidate& candidate, const Outlook& outlook);
  // The same, whatever the pipeline's switch says: whether it would not hold training up.
  static bool HasTime(const InferenceCandidate& candidate, const Outlook& outlook);
  // Until when the candidate leaves the device to a run that is on its way; `now` if it need not.
  static int64_t YieldsUntil(const InferenceCandidate& candidate, const Outlook& outlook);
  // It was taken.
  void Served(const void* pipeline);

 private:
  // Where it stands in the row; those never served stand before all.
  size_t TurnOf(const void* pipeline) const;

  std::vector<const void*> served_;  // least recently first
};

}  // namespace penstock
