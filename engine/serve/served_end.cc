// The end of a ServedPipeline: no new calls, no waiting ones, the last save, no threads. See served_pipeline.h.

#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/serve/served_pipeline.h"

namespace penstock {

void ServedPipeline::StopAccepting() {
  absl::MutexLock lock(&mu_);
  if (state_ == State::kReady) state_ = State::kDraining;
}

void ServedPipeline::Drain(bool force, std::function<void()> done) {
  StopAccepting();
  std::vector<WorkPointer> cancelled;
  {
    absl::MutexLock lock(&mu_);
    drained_.push_back(std::move(done));
    if (force) cancelled = RemoveAllQueued();
  }
  for (const WorkPointer& work : cancelled) SettleFailed(work, CancelledCall());
  NotifyIfDrained();
}

void ServedPipeline::SaveLast(std::shared_ptr<CancelToken> cancel, LastSaveCallback done) {
  Drain(/*force=*/true, [this, cancel = std::move(cancel), done = std::move(done)] { EnqueueLastSave(cancel, done); });
}

void ServedPipeline::EnqueueLastSave(const std::shared_ptr<CancelToken>& cancel, const LastSaveCallback& done) {
  absl::StatusOr<std::optional<CheckpointInfo>> now = std::nullopt;
  bool lost = false;
  bool enqueued = false;
  {
    absl::MutexLock lock(&mu_);
    lost = training_.accumulating();
    if (stopping_) {
      now = CancelledCall();
    } else if (weights_version_ != saved_version_) {
      auto work = std::make_shared<Work>();
      work->method = WorkMethod::kSaveCheckpoint;
      work->training = TrainingCall::kSave;
      work->last_save = true;
      work->cancel = cancel;
      work->inputs_ready = true;
      work->join = std::make_shared<StateJoin>();
      work->join->callbacks.push_back([done](const absl::StatusOr<StateAnswer>& answer) {
        if (!answer.ok()) return done(answer.status());
        done(answer->checkpoint);
      });
      Enqueue(work);
      enqueued = true;
    }
  }
  if (lost) LogWarning("accumulated gradients are lost: they are in no checkpoint", {{"pipeline", options_.name}});
  if (!enqueued) done(std::move(now));
}

void ServedPipeline::Stop() {
  absl::MutexLock stop_lock(&stop_mu_);
  if (train_thread_ == nullptr) return;
  absl::Notification drained;
  Drain(/*force=*/true, [&drained] { drained.Notify(); });
  drained.WaitForNotification();
  std::vector<WorkPointer> late;  // a last save that came in between
  {
    absl::MutexLock lock(&mu_);
    state_ = State::kStopped;
    stopping_ = true;
    late = RemoveAllQueued();
  }
  for (const WorkPointer& work : late) SettleFailed(work, CancelledCall());
  train_thread_.reset();
  infer_thread_.reset();
}

}  // namespace penstock
