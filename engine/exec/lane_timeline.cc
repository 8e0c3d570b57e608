#include "engine/exec/lane_timeline.h"

#include <algorithm>
#include <utility>

#include "engine/device/torch_status.h"

namespace penstock {

LaneTimeline::LaneTimeline(LaneState* state, DeviceStreams* streams, Clock* clock)
    : state_(state), streams_(streams), clock_(clock), on_cpu_(streams == &CpuStreams()) {
  if (on_cpu_) return;
  Mark first = Record();
  if (first.event == nullptr || !RunTorch([&] { first.event->Synchronize(); }).ok()) return;
  last_ = std::move(first.event);
  last_at_ = clock_->NowNanos();
}

LaneTimeline::Mark LaneTimeline::Record() {
  Mark mark{.event = nullptr, .set_at = clock_->NowNanos()};
  if (!RunTorch([&] { mark.event = streams_->RecordTimed(StreamKind::kCompute); }).ok()) GiveUp();
  return mark;
}

std::optional<int64_t> LaneTimeline::TimeOf(const Mark& mark) const {
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
  mark.told(at);
}

void LaneTimeline::ReadPassed() {
  while (!unread_.empty()) {
    std::optional<int64_t> at;
    if (!RunTorch([&] { at = TimeOf(unread_.front()); }).ok()) return GiveUp();
    if (!at.has_value()) return;
    TellFirst(*at);
  }
}

void LaneTimeline::GiveUp() {
  while (!unread_.empty()) TellFirst(clock_->NowNanos());
  last_ = nullptr;
}

bool LaneTimeline::Await() {
  if (unread_.empty()) return false;
  if (!RunTorch([&] { unread_.front().event->Synchronize(); }).ok()) GiveUp();
  return true;
}

}  // namespace penstock
