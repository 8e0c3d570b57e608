#include "server/drain_control.h"

#include "absl/time/clock.h"
#include "engine/base/error.h"

namespace penstock {

absl::Status DrainControl::Ask(Order order) {
  {
    absl::MutexLock lock(&mu_);
    if (!asked_.has_value()) asked_ = Asked{std::make_shared<DrainSignal>(), absl::Now()};
    DrainSignal& signal = *asked_->signal;
    if (signal.aborted() || (order.final && !signal.MakeFinal())) {
      return Error(absl::StatusCode::kUnavailable, "DRAINING", "a drain is being aborted: ask again");
    }
    if (order.for_upgrade && !signal.AskForUpgrade()) {
      return Error(absl::StatusCode::kFailedPrecondition, "DRAIN_FINAL",
                   "the daemon drains and has begun its saves, which empty no journal");
    }
  }
  wake_();
  return absl::OkStatus();
}

absl::Status DrainControl::Abort() {
  absl::MutexLock lock(&mu_);
  if (!asked_.has_value() || asked_->signal->Abort()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "DRAIN_FINAL",
               "the drain can't be aborted any more: a signal asked for it, work was cut short, or it closes");
}

std::optional<DrainControl::Asked> DrainControl::asked() const {
  absl::MutexLock lock(&mu_);
  return asked_;
}

void DrainControl::Forget() {
  absl::MutexLock lock(&mu_);
  asked_.reset();
}

}  // namespace penstock
