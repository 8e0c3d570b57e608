#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// Expects the next training run of a pipeline, so that the pause between two steps is a gap like any other.
//
// Model:     running means of the pauses between runs and of how far they are from that. A trainer is expected after
//            the mean pause less the deviation, and given up once it is late by half the pause and four deviations, at
//            least 0.2 ms and at most 20 ms: then inference runs freely again.
// Threads:   any method from any thread.
// Units:     nanoseconds.
class StepRhythm {
 public:
  void Began(int64_t now) ABSL_LOCKS_EXCLUDED(mu_);
  void Ended(int64_t now) ABSL_LOCKS_EXCLUDED(mu_);

  // When the next run is expected, not before `now`; kNever during a run, before the second one, and once it is given
  // up.
  int64_t ExpectedStart(int64_t now) const ABSL_LOCKS_EXCLUDED(mu_);
  // When it will be given up; kNever if there is nothing to give up.
  int64_t GivenUpAt() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  int64_t GivenUpLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool known_ ABSL_GUARDED_BY(mu_) = false;
  int64_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  double mean_ ABSL_GUARDED_BY(mu_) = 0;
  double deviation_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock
