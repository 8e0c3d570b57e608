#include "engine/exec/lane_state.h"

namespace penstock {

void LaneState::RefreshLocked(int64_t now) {
  StageState state = idle_;
  if (running_.has_value()) {
    state = *running_;
  } else if (step_open_) {
    state = step_wait_;
  } else if (inferences_ > 0 && idle_ != StageState::kSetup && idle_ != StageState::kCheckpoint) {
    state = StageState::kInferWait;
  }
  clock_->Enter(state, now);
}

int64_t LaneState::BeginAction(StageState state) {
  absl::MutexLock lock(&mu_);
  const int64_t now = time_->NowNanos();
  running_ = state == StageState::kInfer && step_open_ ? StageState::kFilled : state;
  RefreshLocked(now);
  return now;
}

int64_t LaneState::EndAction() {
  absl::MutexLock lock(&mu_);
  const int64_t now = time_->NowNanos();
  // Inference in a gap leaves the reason of the gap as it was.
  if (*running_ != StageState::kFilled && *running_ != StageState::kInfer) {
    step_wait_ = StageState::kHost;
    awaited_.reset();
  }
  running_.reset();
  RefreshLocked(now);
  return now;
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
