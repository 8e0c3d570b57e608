#include "engine/observe/state_clock.h"

#include <algorithm>

namespace penstock {

StateClock::StateClock(Clock* clock, TraceRing* trace, int lane)
    : clock_(clock),
      trace_(trace),
      lane_(lane),
      start_nanos_(clock->NowNanos()),
      since_nanos_(start_nanos_),
      shown_nanos_(start_nanos_) {}

void StateClock::Enter(StageState state, int64_t at_nanos) {
  absl::MutexLock lock(&mu_);
  if (state == state_ && !stands_) return;
  PassLocked(at_nanos);
  state_ = state;
  stands_ = false;
}

void StateClock::Stand(StageState untold, int64_t at_nanos) {
  absl::MutexLock lock(&mu_);
  PassLocked(at_nanos);
  state_ = untold;
  stands_ = true;
}

void StateClock::Tell(const TimesByState& told, int64_t at_nanos) {
  absl::MutexLock lock(&mu_);
  if (!stands_) return;
  int64_t room = std::max<int64_t>(at_nanos - since_nanos_, 0);
  for (size_t i = 0; i < told.size(); ++i) {
    const int64_t taken = std::min(told[i], room);
    nanos_[i] += taken;
    since_nanos_ += taken;
    room -= taken;
  }
  PassLocked(at_nanos);
}

void StateClock::PassLocked(int64_t at_nanos) {
  // A caller reads the clock before it takes the lock. Had a snapshot come between, the running state would lose time
  // that was already shown; so the transition moves to the snapshot's time, a few hundred nanoseconds at most.
  const int64_t at = std::max({at_nanos, since_nanos_, shown_nanos_});
  nanos_[static_cast<size_t>(state_)] += at - since_nanos_;
  clamped_nanos_ += at - at_nanos;
  if (trace_ != nullptr && at > since_nanos_ && !stands_) {
    trace_->Record({.begin_nanos = since_nanos_,
                    .end_nanos = at,
                    .kind = TraceKind::kState,
                    .detail = static_cast<uint8_t>(state_),
                    .lane = static_cast<int16_t>(lane_)});
  }
  since_nanos_ = at;
}

StageState StateClock::state() const {
  absl::MutexLock lock(&mu_);
  return state_;
}

int64_t StateClock::clamped_nanos() const {
  absl::MutexLock lock(&mu_);
  return clamped_nanos_;
}

StateTimes StateClock::Snapshot(int64_t now_nanos) const {
  StateTimes times;
  times.start_nanos = start_nanos_;
  absl::MutexLock lock(&mu_);
  shown_nanos_ = stands_ ? since_nanos_ : std::max({now_nanos, since_nanos_, shown_nanos_});
  times.at_nanos = shown_nanos_;
  times.state = state_;
  times.since_nanos = since_nanos_;
  if (trace_ != nullptr) times.transitions = trace_->written();
  times.nanos = nanos_;
  times.nanos[static_cast<size_t>(state_)] += shown_nanos_ - since_nanos_;
  return times;
}

}  // namespace penstock
