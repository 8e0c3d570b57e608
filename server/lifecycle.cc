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

}  // namespace penstock
