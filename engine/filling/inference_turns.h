#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/ids.h"
#include "engine/filling/inference_order.h"

namespace penstock {

// One inference call of a pipeline, through all of its restarts.
//
// Units:     nanoseconds; 0 where unknown.
struct InferenceTicket {
  InferenceOrder order;
  int64_t accepted_nanos = 0;
  int64_t alone_nanos = 0;        // what its run is expected to take where nothing else runs
  int64_t lane_nanos = 0;         // what its actions are expected to take on one lane
  std::atomic<bool> due = false;  // goes before training, and finishes before the weights change
};

// Lets inference that found no gap go before training, for a bounded share of the time.
//
// Model:     a token bucket. It gains `share` of the time that passes and holds what it gains in two seconds; a run
//            that has waited long enough becomes due while it isn't overdrawn. Becoming due takes out what the run is
//            expected to take on a lane; at its end that is replaced by what it did take from training on the lane
//            where it took most (what one lane has lost, those behind it wait for anyway, and use for theirs). So
//            training loses at most `share` in the long run, and a load below that waits no longer than it must. A load
//            that neither the gaps nor the share can carry waits longer, as any overload does.
//            Long enough is `max_wait_nanos`; or, if that is 0, as long as the run would take alone, so that a small
//            call takes about twice that. Between steps only: a run becomes due where a training run begins after it
//            was accepted and has not acted yet, and so runs before that training run's first action; or else with the
//            next one.
// Threads:   any method from any thread.
// Units:     nanoseconds; a share of 0 lets nothing become due.
class InferenceTurns {
 public:
  struct Policy {
    double share = 0;
    int64_t max_wait_nanos = 0;
    bool between_steps = false;
  };
  explicit InferenceTurns(Policy policy);

  // Whether the run is due: it was already, or becomes so now.
  bool Claim(InferenceTicket& ticket, int64_t now) ABSL_LOCKS_EXCLUDED(mu_);
  // An action of a run that is due holds training of a lane up, for at most so long.
  void Charge(const InferenceTicket& ticket, LaneIndex lane, int64_t nanos) ABSL_LOCKS_EXCLUDED(mu_);
  // A run has ended for good. Where other processes have lanes of it, what it took there is not known: it keeps what it
  // was expected to take.
  void Release(const InferenceTicket& ticket, int64_t now, bool all_known = true) ABSL_LOCKS_EXCLUDED(mu_);
  // When the run may become due at the earliest, if no other run goes before it; kNever with a share of 0, and where a
  // training run must begin first.
  int64_t ClaimableAt(const InferenceTicket& ticket) const ABSL_LOCKS_EXCLUDED(mu_);

  // A training run begins; a lane takes an action of it.
  void TrainingBegan(int64_t now);
  void TrainingActs() {
    if (between_steps_.load(std::memory_order_relaxed)) between_steps_.store(false, std::memory_order_release);
  }

 private:
  // When it has waited long enough.
  int64_t PatientUntil(const InferenceTicket& ticket) const;
  void Refill(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Policy policy_;
  std::atomic<int64_t> training_began_{0};
  std::atomic<bool> between_steps_{false};  // one has begun, and has not acted

  mutable absl::Mutex mu_;
  double balance_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, std::map<int, int64_t>> charges_
      ABSL_GUARDED_BY(mu_);  // of runs that are due, by sequence and lane
  int64_t refilled_at_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock
