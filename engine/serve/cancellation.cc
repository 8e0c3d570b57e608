#include "engine/serve/cancellation.h"

#include "engine/base/error.h"
#include "engine/base/guard.h"

namespace penstock {

void Cancellation::RemoveQueued(ServedCalls& calls, const CallPointer& call) {
  calls.RemoveQueued(call);
  if (!call->training.has_value()) return;
  Guarded("the watch over an accumulation", [&] {
    calls.mu.AssertHeld();
    watch_->Look(calls, *call);
  }).IgnoreError();
}

void Cancellation::RemoveQueued(ServedCalls& calls, const std::vector<CallPointer>& waiting) {
  for (const CallPointer& call : waiting) RemoveQueued(calls, call);
}

void Cancellation::SettleCancelled(const std::vector<CallPointer>& removed) {
  for (const CallPointer& call : removed) {
    Guarded("the end of a cancelled call", [&] { settlement_->Fail(call, CancelledCall()); }).IgnoreError();
  }
}

void Cancellation::OnDeadline(const CallPointer& call) {
  absl::Status error;
  {
    absl::MutexLock lock(&calls_->mu);
    Call::Guarded& guarded = calls_->Of(call);
    if (guarded.phase == Call::Phase::kDone) return;
    guarded.deadline_passed = true;
    if (guarded.phase == Call::Phase::kQueued) {
      RemoveQueued(*calls_, call);
      if (calls_->metrics != nullptr) calls_->metrics->rejected[RejectReason::kDeadline].Add();
      error = Error(absl::StatusCode::kDeadlineExceeded, "QUEUE_DEADLINE", "the call's time passed before it started");
    } else {
      call->cancel->Cancel();
      // What changes weights tells its outcome when it is known; the rest of the world need not wait for a forward.
      if (!call->stoppable()) return;
      error = Error(absl::StatusCode::kDeadlineExceeded, "WORK_DEADLINE", "the call's time passed while it ran");
    }
  }
  settlement_->Fail(call, error);
  calls_->NotifyIfDrained();
}

CancelEffect Cancellation::Cancel(const CallPointer& call) {
  CancelEffect effect = CancelEffect::kCancelled;
  {
    absl::MutexLock lock(&calls_->mu);
    const Call::Phase phase = calls_->Of(call).phase;
    if (phase == Call::Phase::kNew || phase == Call::Phase::kDone) return CancelEffect::kNotCancellable;
    if (phase == Call::Phase::kRunning) {
      if (!call->stoppable()) return CancelEffect::kNotCancellable;
      call->cancel->Cancel();
      effect = CancelEffect::kCancelling;
    } else {
      RemoveQueued(*calls_, call);
    }
  }
  settlement_->Fail(call, CancelledCall());
  calls_->NotifyIfDrained();
  return effect;
}

void Cancellation::Abandon(const CallPointer& call) {
  {
    absl::MutexLock lock(&calls_->mu);
    Call::Guarded& guarded = calls_->Of(call);
    ++guarded.abandoned_handles;
    if (guarded.phase == Call::Phase::kNew) return;  // its handles are still being named, by the acceptor
    if (guarded.abandoned_handles < call->accepted.handles().size() || !call->stoppable()) return;
  }
  Cancel(call);
}

}  // namespace penstock
