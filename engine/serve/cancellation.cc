#include "engine/serve/cancellation.h"

#include "absl/cleanup/cleanup.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"

namespace penstock {

void Cancellation::RemoveQueued(ServedCalls& calls, const CallPointer& call) {
  calls.RemoveQueued(call);
  ++calls.unsettled;
  if (!call->training.has_value()) return;
  Guarded("the watch over an accumulation", [&] {
    calls.mu.AssertHeld();
    watch_->Look(calls, *call);
  }).IgnoreError();
}

void Cancellation::RemoveQueued(ServedCalls& calls, const std::vector<CallPointer>& waiting) {
  for (const CallPointer& call : waiting) RemoveQueued(calls, call);
}

void Cancellation::SettleRemoved(const std::function<void()>& settle) {
  const absl::Cleanup settled = [this] {
    absl::MutexLock lock(&calls_->mu);
    --calls_->unsettled;
  };
  settle();
}

void Cancellation::Settle(const CallPointer& call, const absl::Status& error) {
  if (journal_ != nullptr && IsAppended(*call)) {
    return journal_->RecordEnd(
        call, settlement_->AnswerOf(*call, error),
        [this, call, error](const absl::Status& recorded) { SettleNow(call, recorded.ok() ? error : recorded); });
  }
  SettleNow(call, error);
  if (journal_ != nullptr) journal_->AppendReady();  // what stood behind it
}

bool Cancellation::IsAppended(Call& call) const {
  absl::MutexLock lock(&calls_->mu);
  const Call::Guarded& guarded = calls_->Of(call);
  return guarded.appended && guarded.phase == Call::Phase::kDone && call.started_nanos == 0;
}

void Cancellation::SettleNow(const CallPointer& call, const absl::Status& error) {
  const auto end = [&] { settlement_->Fail(call, error); };
  const absl::Status ended = Guarded("the end of a call", end);
  if (!ended.ok()) Guarded("the end of a call", end).IgnoreError();  // its work will not end it
}

void Cancellation::SettleCancelled(const std::vector<CallPointer>& removed, bool for_good) {
  for (const CallPointer& call : removed) {
    SettleRemoved([&] {
      if (for_good || journal_ == nullptr || !IsAppended(*call)) {
        Settle(call, cancelled_);
      } else {
        SettleNow(call, left_);
      }
    });
  }
}

void Cancellation::SettleLost(const std::vector<CallPointer>& removed, const absl::Status& why) {
  for (const CallPointer& call : removed) {
    SettleRemoved([&] {
      if (journal_ == nullptr || !IsAppended(*call)) {
        Settle(call, why);
      } else {
        SettleNow(call, why);
      }
    });
  }
}

void Cancellation::OnDeadline(const CallPointer& call) {
  // What takes memory comes first.
  const absl::Status queued =
      Error(absl::StatusCode::kDeadlineExceeded, "QUEUE_DEADLINE", "the call's time passed before it started");
  const absl::Status running =
      Error(absl::StatusCode::kDeadlineExceeded, "WORK_DEADLINE", "the call's time passed while it ran");
  bool started = false;  // else it was removed
  {
    absl::MutexLock lock(&calls_->mu);
    Call::Guarded& guarded = calls_->Of(call);
    if (guarded.phase == Call::Phase::kDone) return;
    guarded.deadline_passed = true;
    if (guarded.phase == Call::Phase::kQueued) {
      RemoveQueued(*calls_, call);
      if (const auto metrics = calls_->metrics(); metrics != nullptr) {
        metrics->rejected[RejectReason::kDeadline].Add();
      }
    } else {
      started = true;
      call->cancel->Cancel();
      // What changes weights tells its outcome when it is known; the rest of the world need not wait for a forward.
      if (!call->stoppable()) return;
    }
  }
  if (started) {
    Settle(call, running);
  } else {
    SettleRemoved([&] { Settle(call, queued); });
  }
  calls_->NotifyIfDrained();
}

CancelEffect Cancellation::Cancel(const CallPointer& call) {
  CancelEffect effect = CancelEffect::kCancelled;
  bool removed = false;
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
      removed = true;
      // Until that is durable, a restart would make the call.
      if (journal_ != nullptr && calls_->Of(call).appended) effect = CancelEffect::kCancelling;
    }
  }
  if (removed) {
    SettleRemoved([&] { Settle(call, cancelled_); });
  } else {
    Settle(call, cancelled_);
  }
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
