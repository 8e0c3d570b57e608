#include "engine/serve/accumulation_watch.h"

#include <cstdint>
#include <optional>

#include "engine/base/clock.h"

namespace penstock {

void AccumulationWatch::Look(ServedCalls& calls, const Call& ended) const {
  const std::optional<int64_t> expires_at = calls.training.state().expires_at();
  if (expires_at.has_value()) {
    const bool over = *expires_at <= clock_->NowNanos();  // and `ended` was in the way
    if (ended.training != TrainingCall::kContribution && !over) return;
  }
  Watch(calls);
}

void AccumulationWatch::Watch(ServedCalls& calls) const {
  const std::optional<int64_t> expires_at = calls.training.state().expires_at();
  timers_->Remove(std::exchange(calls.accumulation_timer, TimerQueue::kNoTimer));
  if (!expires_at.has_value()) return;
  calls.accumulation_timer = timers_->Add(*expires_at, calls.WhileItLives([this] { expire_(); }));
}

}  // namespace penstock
