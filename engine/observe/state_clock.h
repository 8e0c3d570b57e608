#pragma once

// The conserved time of one lane.

#include <array>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/observe/stage_state.h"
#include "engine/observe/trace_ring.h"

namespace penstock {

// By state, in the order of the enum.
using TimesByState = std::array<int64_t, kStageStateCount>;

// Time by state, at one instant. The cells sum to at_nanos - start_nanos, exactly.
struct StateTimes {
  TimesByState nanos{};
  int64_t start_nanos = 0;  // when the clock was made
  int64_t at_nanos = 0;
  StageState state = StageState::kSetup;  // at that instant
  int64_t since_nanos = 0;                // when that state began
  uint64_t transitions = 0;               // records that the clock had put into its ring

  int64_t operator[](StageState s) const { return nanos[static_cast<size_t>(s)]; }
  int64_t Total() const { return at_nanos - start_nanos; }
};

// Splits the time of one lane among states, without gap or overlap.
//
// Model:     a cell per state, the running state, and when it began. The running state is added to the copy that a
//            snapshot returns, never to the cells.
//            The clock of a lane of another process stands while only that process knows what the lane does. What is told
//            later fills the time that is missing; snapshots end where the clock stands.
//            Each state that took time, while the clock did not stand, becomes a record of the ring when it ends, if there is a ring.
// Owns:      nothing; the Clock and the ring must outlive it.
// Threads:   any method from any thread. Enter() costs one short lock, under which the ring is written too.
// Lifecycle: starts in kSetup at the time of construction.
// Units:     monotonic nanoseconds of the Clock. Times never go back: one before the last transition, or before what a
//            snapshot has already shown, counts as that one. So no reported value ever falls.
class StateClock {
 public:
  explicit StateClock(Clock* clock, TraceRing* trace = nullptr, int lane = 0);

  // The lane is in `state` from `at_nanos` on. Entering the running state again changes nothing.
  void Enter(StageState state, int64_t at_nanos) ABSL_LOCKS_EXCLUDED(mu_);
  void Enter(StageState state) ABSL_LOCKS_EXCLUDED(mu_) { Enter(state, clock_->NowNanos()); }

  // The clock stands from `at_nanos` on, until the next Enter(). What nobody tells of that time counts as `untold`.
  void Stand(StageState untold, int64_t at_nanos) ABSL_LOCKS_EXCLUDED(mu_);
  // Where it stands: fills the time up to `at_nanos`, with as much of what is told as there is room for, and stands
  // there. Where it doesn't stand, nothing changes.
  void Tell(const TimesByState& told, int64_t at_nanos) ABSL_LOCKS_EXCLUDED(mu_);

  StageState state() const ABSL_LOCKS_EXCLUDED(mu_);

  // By how much transitions were put off in all, because a snapshot had shown their time already.
  int64_t clamped_nanos() const ABSL_LOCKS_EXCLUDED(mu_);

  StateTimes Snapshot(int64_t now_nanos) const ABSL_LOCKS_EXCLUDED(mu_);
  StateTimes Snapshot() const ABSL_LOCKS_EXCLUDED(mu_) { return Snapshot(clock_->NowNanos()); }

 private:
  // The present state counts up to `at_nanos`, or to what was shown if that is later.
  void PassLocked(int64_t at_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  TraceRing* const trace_;  // may be null
  const int lane_;
  const int64_t start_nanos_;

  mutable absl::Mutex mu_;
  TimesByState nanos_ ABSL_GUARDED_BY(mu_){};
  StageState state_ ABSL_GUARDED_BY(mu_) = StageState::kSetup;
  int64_t since_nanos_ ABSL_GUARDED_BY(mu_);
  bool stands_ ABSL_GUARDED_BY(mu_) = false;
  int64_t clamped_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  mutable int64_t shown_nanos_ ABSL_GUARDED_BY(mu_);  // the latest time that a snapshot has shown
};

}  // namespace penstock
