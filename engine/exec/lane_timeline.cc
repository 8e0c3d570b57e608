#include "engine/exec/lane_timeline.h"

#include <algorithm>
#include <utility>

#include "engine/base/guard.h"
#include "engine/device/torch_status.h"

namespace penstock {

LaneTimeline::LaneTimeline(LaneState* state, DeviceStreams* streams, Clock* clock)
    : state_(state), streams_(streams), clock_(clock), on_cpu_(streams == &CpuStreams()) {
  if (on_cpu_) return;
  Mark first;  // a device that fails here tells so at the first action
  if (!Record(first).ok() || first.event == nullptr || !RunTorch([&] { first.event->Synchronize(); }).ok()) return;
  last_ = std::move(first.event);
  last_at_ = clock_->NowNanos();
}

absl::Status LaneTimeline::Record(Mark& mark) {
  mark.set_at = clock_->NowNanos();
  return RunTorch([&] { mark.event = streams_->RecordTimed(StreamKind::kCompute); });
}

void LaneTimeline::Keep(const void* owner, Mark mark, Tell told) {
  mark.owner = owner;
  mark.told = std::move(told);
  unread_.push_back(std::move(mark));
}

std::optional<int64_t> LaneTimeline::TimeOf(const Mark& mark) const {
  if (mark.event == nullptr) return clock_->NowNanos();
  if (!mark.event->Ready()) return std::nullopt;
  const int64_t at = last_ == nullptr ? mark.set_at : last_at_ + mark.event->NanosSince(*last_);
  return std::clamp(at, mark.set_at, std::max(mark.set_at, clock_->NowNanos()));
}

void LaneTimeline::TellFirst(int64_t at) {
  const Mark mark = std::move(unread_.front());
  unread_.pop_front();
  last_ = mark.event;
  last_at_ = at;
  state_->Passed(at);
  if (mark.told) mark.told(at);
}

absl::Status LaneTimeline::ReadPassed() {
  while (!unread_.empty()) {
    const Mark& first = unread_.front();
    std::optional<int64_t> at;
    if (absl::Status asked = RunTorch([&] { at = TimeOf(first); }); !asked.ok()) {
      if (first.owner != nullptr) return asked;
      at = clock_->NowNanos();  // nobody waits for it; what comes behind it tells the same
    }
    if (!at.has_value()) return absl::OkStatus();
    TellFirst(*at);
  }
  return absl::OkStatus();
}

void LaneTimeline::GiveUp(const void* owner) {
  // What the owner's work reads and writes may be used by others as soon as it is told.
  (void)RunTorch([this] { streams_->Synchronize(); });
  for (Mark& mark : unread_) {
    if (mark.owner != owner) continue;
    mark.owner = nullptr;
    // What fails here keeps no mark from being taken from the owner.
    Guarded("a mark", [this, told = std::exchange(mark.told, {})] { told(clock_->NowNanos()); }).IgnoreError();
  }
  (void)Read();
}

absl::StatusOr<bool> LaneTimeline::Await() {
  if (unread_.empty()) return false;
  const Mark& first = unread_.front();
  if (first.event == nullptr) return true;
  absl::Status waited = RunTorch([&] { first.event->Synchronize(); });
  if (!waited.ok() && first.owner != nullptr) return waited;
  return true;
}

}  // namespace penstock
