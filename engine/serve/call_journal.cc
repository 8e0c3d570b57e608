#include "engine/serve/call_journal.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

CallStatus StatusOf(const absl::Status& error) {
  if (error.ok()) return CallStatus::kDone;
  return absl::IsCancelled(error) ? CallStatus::kCancelled : CallStatus::kFailed;
}

// Of a call that a restart makes.
absl::Status LostOutcome(const absl::Status& cause) {
  return Error(absl::StatusCode::kFailedPrecondition, "JOURNAL_STOPPED",
               absl::StrCat("the journal takes nothing until a restart, since the outcome of a call could not be "
                            "recorded: ",
                            cause.message()));
}

// Of a call that the request log has forgotten before it has ended.
absl::Status StillOpen() {
  return Error(absl::StatusCode::kUnavailable, "CALL_OPEN",
               "an earlier attempt at the call has not ended: ask again for its answer");
}

}  // namespace

bool CallJournal::Keeps(const Call& call) {
  if (!call.training.has_value() || call.As<ReadCall>() != nullptr || call.As<CompactCall>() != nullptr) return false;
  if (call.As<UpdateCall>() != nullptr) return false;  // its checkpoint stands for it
  const auto* save = call.As<SaveCall>();
  return save == nullptr || !save->last;
}

CallPointer CallJournal::NextToAppend() {
  absl::MutexLock lock(&calls_->mu);
  for (const CallPointer& call : calls_->training.waiting()) {
    Call::Guarded& guarded = calls_->Of(call);
    if (guarded.durable || guarded.appended) continue;
    if (!guarded.inputs_ready) return nullptr;
    guarded.appended = true;
    call->forward_sequence = calls_->training.ForwardOf(*call);
    return call;
  }
  return nullptr;
}

void CallJournal::AppendReady() {
  std::vector<std::pair<CallPointer, absl::Status>> failed;  // told without the lock
  {
    absl::MutexLock order(&append_mu_);
    while (const CallPointer call = NextToAppend()) {
      const absl::Status appended = Guarded("the journal of a call", [&] {
        append_mu_.AssertHeld();
        return Append(call);
      });
      if (!appended.ok()) failed.emplace_back(call, appended);
    }
  }
  for (const auto& [call, status] : failed) OnAppended(call, status);
}

// A value that can't be had fails the call when it runs, so the row needs none.
absl::StatusOr<NamedValues> CallJournal::ValuesOf(const Call& call) const {
  if (call.As<WriteCall>() == nullptr) {
    absl::StatusOr<NamedValues> values = call.inputs.Take();
    return values.ok() ? values : NamedValues();
  }
  NamedValues written;
  for (int i = 0; i < call.inputs.pin_count(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors tensors, call.inputs.pin(i).tensors());
    for (const NamedTensor& tensor : tensors) written.push_back({tensor.name, Value(tensor.tensor)});
  }
  return written;
}

absl::Status CallJournal::Append(const CallPointer& call) {
  PENSTOCK_RETURN_IF_ERROR(health());
  PENSTOCK_ASSIGN_OR_RETURN(const NamedValues values, ValuesOf(*call));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<JournalInput> inputs, records_->WriteInputs(*call, values));
  CallRow row{.sequence = call->accepted.sequence,
              .identity = call->context.caller,
              .method = call->method(),
              .request_id = call->context.request_id,
              .payload_digest = call->context.recorded_digest,
              .parameters = records_->WriteCall(*call),
              .micro_batches = call->queue_weight,
              .forward_sequence = call->forward_sequence,
              .accepted_unix_nanos = absl::ToUnixNanos(clock_->WallNow())};
  journal_->Append(std::move(row), std::move(inputs),
                   [this, call](const absl::Status& status) { OnAppended(call, status); });
  return absl::OkStatus();
}

void CallJournal::OnAppended(const CallPointer& call, const absl::Status& status) {
  if (status.ok()) {
    {
      absl::MutexLock lock(&calls_->mu);
      calls_->Of(call).durable = true;
    }
    if (call->accepted.durable != nullptr) call->accepted.durable->Settle(status);
    return;
  }
  Note(status, /*outcome_is_lost=*/false);
  {
    absl::MutexLock lock(&calls_->mu);
    if (calls_->Of(call).phase != Call::Phase::kQueued) return;  // it was cancelled meanwhile, which ends it
    calls_->RemoveQueued(call);
  }
  refused_(call, status);
  calls_->NotifyIfDrained();
}

void CallJournal::CountIndex() {
  absl::MutexLock lock(&kept_mu_);
  held_.ResizeAnyway(journal_->index_bytes());
}

void CallJournal::RecordEnd(const CallPointer& call, const CallAnswer& answer,
                            std::function<void(const absl::Status&)> then) {
  const auto end = [this, call, then = std::move(then)](const absl::Status& recorded) {
    // What the journal has not taken is not made again.
    const bool lost = !recorded.ok() && IsDurable(*call);
    const bool told = lost || ReasonOf(recorded) == "JOURNAL_STOPPED";
    if (told) Note(recorded, lost);
    CountIndex();
    Guarded("the end of a call", [&] { then(told ? recorded : absl::OkStatus()); }).IgnoreError();
    {
      absl::MutexLock lock(&calls_->mu);
      --calls_->unsettled;
    }
    calls_->NotifyIfDrained();
  };
  {
    absl::MutexLock lock(&calls_->mu);
    if (std::exchange(calls_->Of(call).recorded, true)) return;  // an exception has left what was under way
    ++calls_->unsettled;
  }
  {
    absl::MutexLock order(&append_mu_);  // whoever appends it has done so
  }
  const absl::Status queued = Guarded("the outcome of a call", [&] {
    JournalOutcome outcome{.status = StatusOf(answer.error), .bytes = records_->WriteAnswer(answer)};
    if (call->started_nanos != 0) outcome.run_nanos = clock_->NowNanos() - call->started_nanos;
    outcome.settled_unix_nanos = absl::ToUnixNanos(clock_->WallNow());
    journal_->RecordOutcome(call->accepted.sequence, std::move(outcome), end);
  });
  if (!queued.ok()) end(queued);  // whoever waits is told so, and a drain ends
}

bool CallJournal::IsDurable(Call& call) const {
  absl::MutexLock lock(&calls_->mu);
  return calls_->Of(call).durable;
}

void CallJournal::AwaitSettled() const {
  const auto settled = [this] {
    calls_->mu.AssertReaderHeld();
    return calls_->unsettled == 0 && !calls_->writing;
  };
  absl::MutexLock lock(&calls_->mu);
  calls_->mu.Await(absl::Condition(&settled));
}

absl::StatusOr<std::optional<CallJournal::Earlier>> CallJournal::FindEarlier(const Call& call) {
  if (call.context.request_id.empty() || !Keeps(call)) return std::optional<Earlier>();
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<RecordedCall> found,
                            journal_->FindRequest(call.context.caller, call.method(), call.context.request_id));
  if (!found.has_value()) return std::optional<Earlier>();
  if (found->outcome.status == CallStatus::kAccepted) {
    absl::MutexLock lock(&calls_->mu);
    if (calls_->log.Contains(call.key())) return std::optional<Earlier>();
    return StillOpen();
  }
  if (found->payload_digest != call.context.recorded_digest) return RequestIdReused(call.context.request_id);
  PENSTOCK_ASSIGN_OR_RETURN(CallAnswer answer, records_->ReadAnswer(found->outcome.bytes));
  return std::optional<Earlier>(Earlier{found->sequence, std::move(answer)});
}

bool CallJournal::Knows(const RequestKey& key) {
  const auto found = journal_->FindRequest(key.caller, key.method, key.request_id);
  return found.ok() && found->has_value();
}

void CallJournal::Keep(int64_t sequence, KeptForward forward, size_t limit) {
  std::map<int64_t, KeptForward>::node_type gone;  // freed without the lock
  absl::MutexLock lock(&kept_mu_);
  kept_.emplace(sequence, std::move(forward));
  if (kept_.size() > limit) gone = kept_.extract(kept_.begin());
}

std::optional<CallJournal::KeptForward> CallJournal::TakeKept(int64_t sequence) {
  absl::MutexLock lock(&kept_mu_);
  const auto found = kept_.find(sequence);
  if (found == kept_.end()) return std::nullopt;
  std::optional<KeptForward> taken = std::move(found->second);
  kept_.erase(found);
  return taken;
}

void CallJournal::ForgetKept() {
  std::map<int64_t, KeptForward> gone;  // freed without the lock
  absl::MutexLock lock(&kept_mu_);
  gone.swap(kept_);
}

std::map<int64_t, absl::Duration> CallJournal::KeptLeases() const {
  std::map<int64_t, absl::Duration> leases;
  absl::MutexLock lock(&kept_mu_);
  for (const auto& [sequence, forward] : kept_) leases.emplace(sequence, forward.lease);
  return leases;
}

void CallJournal::Note(const absl::Status& status, bool outcome_is_lost) {
  if (!outcome_is_lost && ReasonOf(status) != "JOURNAL_STOPPED") return;
  absl::MutexLock lock(&kept_mu_);
  if (!stopped_.ok()) return;
  stopped_ = ReasonOf(status) == "JOURNAL_STOPPED" ? status : LostOutcome(status);
  LogError("the journal has stopped: calls that change state are refused until a restart",
           {{"error", std::string(status.message())}});
}

absl::Status CallJournal::health() const {
  absl::MutexLock lock(&kept_mu_);
  return stopped_;
}

void CallJournal::Close() {
  if (const absl::Status closed = journal_->Close(); !closed.ok()) {
    LogWarning("a journal did not close well", {{"error", std::string(closed.message())}});
  }
}

}  // namespace penstock
