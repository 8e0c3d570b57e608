#include "engine/exec/lane_state.h"

#include <algorithm>

#include "engine/base/check.h"

namespace penstock {

void LaneState::RefreshLocked(std::optional<int64_t> at) {
  StageState state = idle_;
  if (running_.has_value()) {
    state = *running_;
  } else if (step_open_) {
    state = step_wait_;
  } else if (inferences_ > 0 && idle_ != StageState::kSetup && idle_ != StageState::kCheckpoint) {
    state = StageState::kInferWait;
  }
  if (late_.empty() && at.has_value()) return clock_->Enter(state, *at);
  QueueLocked(state, at);
}

// A function of its own, so that RefreshLocked(), which every action calls twice, needs no stack frame.
void LaneState::QueueLocked(StageState state, std::optional<int64_t> at) { late_.push_back({state, at}); }

void LaneState::BeginLocked(StageState state, std::optional<int64_t> at) {
  running_ = state == StageState::kInfer && step_open_ ? StageState::kFilled : state;
  RefreshLocked(at);
}

void LaneState::EndLocked(std::optional<int64_t> at) {
  // Inference in a gap leaves the reason of the gap as it was.
  if (*running_ != StageState::kFilled && *running_ != StageState::kInfer) {
    step_wait_ = StageState::kHost;
    awaited_.reset();
  }
  running_.reset();
  RefreshLocked(at);
}

int64_t LaneState::BeginAction(StageState state) {
  absl::MutexLock lock(&mu_);
  const int64_t now = time_->NowNanos();
  BeginLocked(state, now);
  return now;
}

int64_t LaneState::EndAction() {
  absl::MutexLock lock(&mu_);
  const int64_t now = time_->NowNanos();
  EndLocked(now);
  return now;
}

void LaneState::LaunchAction(StageState state) {
  absl::MutexLock lock(&mu_);
  BeginLocked(state, std::nullopt);
}

void LaneState::LaunchEnd() {
  absl::MutexLock lock(&mu_);
  EndLocked(std::nullopt);
}

void LaneState::Passed(int64_t at) {
  absl::MutexLock lock(&mu_);
  PENSTOCK_CHECK(!late_.empty() && !late_.front().at.has_value());
  late_.front().at = at;
  int64_t entered = at;
  for (; !late_.empty() && late_.front().at.has_value(); late_.pop_front()) {
    entered = std::max(entered, *late_.front().at);
    clock_->Enter(late_.front().state, entered);
  }
}

void LaneState::OpenStep() {
  absl::MutexLock lock(&mu_);
  step_open_ = true;
  step_wait_ = StageState::kHost;
  awaited_.reset();
  RefreshLocked(time_->NowNanos());
}

void LaneState::CloseStep() {
  absl::MutexLock lock(&mu_);
  step_open_ = false;
  awaited_.reset();
  RefreshLocked(time_->NowNanos());
}

void LaneState::WaitInStep(StageState reason, std::optional<MessageKey> awaited) {
  absl::MutexLock lock(&mu_);
  step_wait_ = reason;
  awaited_ = awaited;
  RefreshLocked(time_->NowNanos());
}

void LaneState::Arrived(const MessageKey& key, bool device_busy) {
  absl::MutexLock lock(&mu_);
  if (awaited_ != key) return;
  awaited_.reset();
  step_wait_ = device_busy ? StageState::kWaitDevice : StageState::kHost;
  RefreshLocked(time_->NowNanos());
}

void LaneState::DeviceTaken(bool taken) {
  absl::MutexLock lock(&mu_);
  const StageState before = taken ? StageState::kHost : StageState::kWaitDevice;
  if (!step_open_ || step_wait_ != before) return;
  step_wait_ = taken ? StageState::kWaitDevice : StageState::kHost;
  RefreshLocked(time_->NowNanos());
}

void LaneState::OpenInference() {
  absl::MutexLock lock(&mu_);
  ++inferences_;
  RefreshLocked(time_->NowNanos());
}

void LaneState::CloseInference() {
  absl::MutexLock lock(&mu_);
  --inferences_;
  RefreshLocked(time_->NowNanos());
}

void LaneState::SetIdle(StageState state) {
  absl::MutexLock lock(&mu_);
  idle_ = state;
  RefreshLocked(time_->NowNanos());
}

}  // namespace penstock
