#pragma once

// A plan under way: how long it may take, whether anybody still wants it, and how far it is.

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"

namespace penstock {

// In their order. The time of planning begins with kMeasuring.
enum class PlanPhase { kWaiting, kLoading, kMeasuring, kSearching, kConfirming, kRehearsing, kBuilding };

std::string_view PlanPhaseName(PlanPhase phase);  // waiting, loading, measuring, ...

// Units:     seconds; `done` is a share of the whole, 0 to 1, and never falls.
struct PlanProgress {
  PlanPhase phase = PlanPhase::kWaiting;
  double done = 0;
  double elapsed_seconds = 0;  // since it was asked for
  double budget_seconds = 0;   // that planning may take; infinite: as long as it takes
};

// The state of one planning: the planner reads its time and whether it is still wanted; other threads read its
// progress.
//
// Model:     A phase, and how many of its parts are done. Each phase may use the budget up to a share of its own, so
//            that one which comes later has its time too: what an earlier one leaves over is the next one's.
// Threads:   any method from any thread; `unwanted` is called without a lock.
class Planning {
 public:
  // A budget of 0: nothing is measured. `unwanted` returns true once no caller waits for the plan any more; empty: it is
  // always wanted.
  Planning(Clock* clock, double budget_seconds, std::function<bool()> unwanted = {});

  // Begins a phase of `parts` parts. Does nothing if the phase is not later than the present one.
  void Enter(PlanPhase phase, int64_t parts) ABSL_LOCKS_EXCLUDED(mu_);
  void PartDone() ABSL_LOCKS_EXCLUDED(mu_);

  bool measures() const { return budget_seconds_ > 0; }
  // Whether the phase must end with what it has: its share of the time is over, or the plan is unwanted.
  bool OutOfTime() const ABSL_LOCKS_EXCLUDED(mu_) { return SecondsLeft() <= 0 || !CheckWanted().ok(); }
  // Until the phase must end; at least 0.
  double SecondsLeft() const ABSL_LOCKS_EXCLUDED(mu_);
  // Fails:     CANCELLED / WORK_CANCELLED.
  absl::Status CheckWanted() const;

  PlanProgress progress() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Clock* const clock_;
  const double budget_seconds_;
  const std::function<bool()> unwanted_;
  const int64_t asked_nanos_;

  mutable absl::Mutex mu_;
  PlanPhase phase_ ABSL_GUARDED_BY(mu_) = PlanPhase::kWaiting;
  int64_t begin_nanos_ ABSL_GUARDED_BY(mu_) = 0;  // of the first phase that takes from the budget
  int64_t parts_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t done_ ABSL_GUARDED_BY(mu_) = 0;
};

// A planning without a time limit, which nothing cancels or watches. Never destroyed.
Planning* EndlessPlanning();

}  // namespace penstock
