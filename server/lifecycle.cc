#include "server/lifecycle.h"

#include <utility>

#include "engine/base/check.h"

namespace penstock {

std::string_view NameOf(LifecycleState state) {
  switch (state) {
    case LifecycleState::kStarting:
      return "starting";
    case LifecycleState::kReady:
      return "ready";
    case LifecycleState::kAnnouncing:
    case LifecycleState::kRefusing:
    case LifecycleState::kClosing:
      return "draining";
    case LifecycleState::kStopped:
      return "stopped";
  }
  return "stopped";
}

void Lifecycle::Observe(Observer observer) {
  observer(state());
  observers_.push_back(std::move(observer));
}

void Lifecycle::Advance(LifecycleState next) {
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_CHECK(kLifecycleTransitions[static_cast<size_t>(state_)][static_cast<size_t>(next)]);
    state_ = next;
  }
  for (const Observer& observer : observers_) observer(next);
}

LifecycleState Lifecycle::state() const {
  absl::MutexLock lock(&mu_);
  return state_;
}

void DrainSignal::Hurry() {
  absl::MutexLock lock(&mu_);
  hurried_ = true;
}

void DrainSignal::WorkEnded() {
  absl::MutexLock lock(&mu_);
  work_ended_ = true;
}

void DrainSignal::SaveEnded(bool saved) {
  absl::MutexLock lock(&mu_);
  save_ended_ = true;
  saved_ = saved;
}

bool DrainSignal::hurried() const {
  absl::MutexLock lock(&mu_);
  return hurried_;
}

bool DrainSignal::work_ended() const {
  absl::MutexLock lock(&mu_);
  return work_ended_;
}

bool DrainSignal::save_ended() const {
  absl::MutexLock lock(&mu_);
  return save_ended_;
}

bool DrainSignal::saved() const {
  absl::MutexLock lock(&mu_);
  return saved_;
}

void DrainSignal::AwaitTime(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&hurried_), time);
}

void DrainSignal::AwaitWork(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(this, &DrainSignal::WorkEndedOrHurried), time);
}

void DrainSignal::AwaitSave(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(this, &DrainSignal::SaveEndedOrHurried), time);
}

void DrainSignal::AwaitSaveInAnyCase(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  mu_.AwaitWithTimeout(absl::Condition(&save_ended_), time);
}

}  // namespace penstock
