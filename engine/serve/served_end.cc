// The end of a ServedPipeline: no new calls, no waiting ones, the last save, no threads. See served_pipeline.h.

#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/serve/served_pipeline.h"

namespace penstock {

bool ServedPipeline::Idle() const {
  return training_.idle() && inference_.idle() && reads_.empty() && reads_running_ == 0;
}

void ServedPipeline::SettleCancelled(const std::vector<CallPointer>& calls) {
  for (const CallPointer& call : calls) {
    Guarded("the end of a cancelled call", [&] { SettleFailed(call, CancelledCall()); }).IgnoreError();
  }
}

void ServedPipeline::NotifyIfDrained() {
  std::vector<std::function<void()>> callbacks;
  {
    absl::MutexLock lock(&mu_);
    if (state_ == State::kReady || !Idle()) return;
    callbacks.swap(drained_);
  }
  for (const auto& callback : callbacks) Guarded("the end of a drain", callback).IgnoreError();
}

void ServedPipeline::StopAccepting() {
  absl::MutexLock lock(&mu_);
  if (state_ == State::kReady) state_ = State::kDraining;
}

void ServedPipeline::Drain(bool force, std::function<void()> done) {
  std::vector<CallPointer> cancelled;
  {
    absl::MutexLock lock(&mu_);
    drained_.push_back(std::move(done));  // what may fail comes first
    if (state_ == State::kReady) state_ = State::kDraining;
    if (force) cancelled = RemoveAllQueued();
  }
  SettleCancelled(cancelled);
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
    lost = training_.state().accumulating();
    if (stopping_) {
      now = CancelledCall();
    } else if (!training_.saved()) {
      const auto call = std::make_shared<Call>(CallContext(), SaveCall{.last = true});
      call->cancel = cancel;
      call->inputs_ready = true;
      call->join = std::make_shared<StateJoin>();
      call->join->callbacks.push_back([done](const absl::StatusOr<StateAnswer>& answer) {
        if (!answer.ok()) return done(answer.status());
        done(answer->checkpoint);
      });
      Enqueue(call);
      enqueued = true;
    }
  }
  if (lost) LogWarning("accumulated gradients are lost: they are in no checkpoint", {{"pipeline", options_.name}});
  if (!enqueued) done(std::move(now));
}

void ServedPipeline::Stop() {
  absl::MutexLock stop_lock(&stop_mu_);
  if (train_thread_ == nullptr) return;
  const auto drained = std::make_shared<absl::Notification>();
  Drain(/*force=*/true, [drained] { drained->Notify(); });
  drained->WaitForNotification();
  std::vector<CallPointer> late;  // a last save that came in between
  {
    absl::MutexLock lock(&mu_);
    state_ = State::kStopped;
    stopping_ = true;
    late = RemoveAllQueued();
  }
  SettleCancelled(late);
  train_thread_.reset();
  infer_thread_.reset();
}

}  // namespace penstock
