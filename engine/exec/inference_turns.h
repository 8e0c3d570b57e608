#pragma once

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// One inference call of a pipeline, through all of its restarts.
struct InferenceTicket {
  int64_t sequence = 0;  // order of acceptance, unique in the pipeline
  int32_t priority = 0;  // higher first
  int64_t accepted_nanos = 0;
  std::atomic<bool> due = false;  // goes before training, and finishes before the weights change
  std::atomic<int> restarts = 0;
};

// Lets inference that found no gap go before training: one run at a time, for a bounded share of the time.
//
// Model:     a run that waited longer than `max_wait_nanos` becomes due when no other is. What its actions take from
//            training is charged; after it, the next may become due when that was `share` of the time since: so training
//            loses at most that share in the long run, and a light load waits at most max_wait_nanos and its own run. A load
//            that neither the gaps nor the share can carry waits longer, as any overload does.
// Threads:   any method from any thread.
// Units:     nanoseconds; a share of 0 lets nothing become due.
class InferenceTurns {
 public:
  InferenceTurns(double share, int64_t max_wait_nanos) : share_(share), max_wait_(max_wait_nanos) {}

  // Whether the run is due: it was already, or becomes so now.
  bool Claim(InferenceTicket& ticket, int64_t now) ABSL_LOCKS_EXCLUDED(mu_);
  // An action of the run that is due has held training up, for at most so long.
  void Charge(int64_t nanos) ABSL_LOCKS_EXCLUDED(mu_);
  // A run has ended for good.
  void Release(const InferenceTicket& ticket, int64_t now) ABSL_LOCKS_EXCLUDED(mu_);
  // When the run may become due at the earliest, if nobody goes before it; kNever with a share of 0.
  int64_t ClaimableAt(const InferenceTicket& ticket) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const double share_;
  const int64_t max_wait_;

  mutable absl::Mutex mu_;
  bool taken_ ABSL_GUARDED_BY(mu_) = false;
  int64_t holder_ ABSL_GUARDED_BY(mu_) = 0;  // its sequence
  int64_t charged_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t free_at_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock
