#include "engine/serve/acceptor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/observe/metrics.h"
#include "engine/serve/joined.h"
#include "engine/serve/pipeline_errors.h"

namespace penstock {
namespace {

RejectReason RejectReasonOf(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  if (reason == "QUEUE_FULL") return RejectReason::kQueueFull;
  if (reason == "HANDLE_BUDGET" || reason == "HOST_MEMORY") return RejectReason::kMemory;
  if (reason == "GRAPH_LIMIT" || reason == "REQUEST_LOG_FULL" || reason == "CALLER_QUOTA") return RejectReason::kQuota;
  if (reason == "DRAINING" || reason == "PIPELINE_REFORMING") return RejectReason::kDraining;
  return RejectReason::kInvalid;
}

}  // namespace

// What the handles of a call know of it.
class Acceptor::Producer : public HandleProducer {
 public:
  Producer(const ServedCalls& calls, Cancellation* cancellation, CallPointer call)
      : pipeline_(calls.owner), cancellation_(cancellation), call_(std::move(call)) {}

  CancelEffect RequestCancel() override {
    const auto alive = pipeline_.lock();
    return alive == nullptr ? CancelEffect::kNotCancellable : cancellation_->Cancel(call_);
  }
  void Abandon(const HandleId&) override {
    if (const auto alive = pipeline_.lock()) cancellation_->Abandon(call_);
  }

 private:
  const std::weak_ptr<const void> pipeline_;
  Cancellation* const cancellation_;  // the pipeline's
  const CallPointer call_;
};

absl::Status Acceptor::Refused(absl::Status status) const {
  if (const auto metrics = calls_->metrics(); metrics != nullptr) metrics->rejected[RejectReasonOf(status)].Add();
  return WithValue(std::move(status), "pipeline", options_.name);
}

absl::StatusOr<std::optional<Accepted>> Acceptor::Recorded(const Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<RecordedAnswer> recorded,
                            calls_->log.Find(call.key(), call.context.payload_digest, options_.clock->NowNanos()));
  if (!recorded.has_value()) return std::optional<Accepted>();
  return std::optional<Accepted>(std::get<Accepted>(*recorded));
}

bool Acceptor::HasAccepted(const std::string& caller, const std::string& request_id) const {
  const auto known = [&](const auto& contains) {
    return std::any_of(MethodNames().begin(), MethodNames().end(), [&](const char* method) {
      return contains(RequestKey{.caller = caller, .method = method, .request_id = request_id});
    });
  };
  {
    absl::MutexLock lock(&calls_->mu);
    if (known([this](const RequestKey& key) {
          calls_->mu.AssertHeld();
          return calls_->log.Contains(key);
        })) {
      return true;
    }
  }
  return journal_ != nullptr && known([this](const RequestKey& key) { return journal_->Knows(key); });
}

void Acceptor::AppendReady() const {
  if (journal_ != nullptr) journal_->AppendReady();
}

absl::StatusOr<std::optional<Accepted>> Acceptor::RecordedBefore(const CallPointer& call) {
  if (journal_ == nullptr) return std::optional<Accepted>();
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<CallJournal::Earlier> earlier, journal_->FindEarlier(*call));
  if (!earlier.has_value()) return std::optional<Accepted>();
  call->accepted.sequence = earlier->sequence;
  absl::Cleanup give_up = [&] { WithdrawHandles(*call); };
  PENSTOCK_RETURN_IF_ERROR(ReserveHandles(call, {.outcome = call->As<ForwardCall>() == nullptr,
                                                 .outputs = earlier->answer.has_outputs,
                                                 .graph = earlier->answer.has_graph}));
  {
    absl::MutexLock lock(&calls_->mu);
    call->accepted.step = calls_->training.step();
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<Accepted> recorded, Recorded(*call));
    if (recorded.has_value()) return recorded;  // another retry came first
    calls_->log.Record(call->key(), call->context.payload_digest, call->accepted, options_.clock->NowNanos());
  }
  std::move(give_up).Cancel();
  const absl::Status fulfilled = Guarded("the answer to a retry", [&] { FulfilAgain(*call, *std::move(earlier)); });
  if (!fulfilled.ok()) {  // nobody else will settle them; one that has settled stays as it is
    for (const HandleName& name : call->accepted.handles()) options_.handles->Fail(name.id, fulfilled);
  }
  settlement_->EndPlace(*call);
  return std::optional<Accepted>(call->accepted);
}

void Acceptor::FulfilAgain(const Call& call, CallJournal::Earlier earlier) {
  const Accepted& accepted = call.accepted;
  HandleStore& handles = *options_.handles;
  CallAnswer& answer = earlier.answer;
  if (!answer.error.ok()) {
    for (const HandleName& name : accepted.handles()) handles.Fail(name.id, answer.error);
    return;
  }
  const absl::Status gone = Error(absl::StatusCode::kFailedPrecondition, "EPOCH_MISMATCH",
                                  "the call was made before the daemon was restarted: what it did holds, and its "
                                  "tensors are gone")
                                .With("pipeline", options_.name);
  if (accepted.outcome.has_value() && answer.outcome.has_value()) {
    handles.Fulfil(accepted.outcome->id, *std::move(answer.outcome));
  }
  std::optional<CallJournal::KeptForward> kept;
  if (accepted.graph.has_value()) kept = journal_->TakeKept(earlier.sequence);
  if (!kept.has_value()) {
    if (accepted.outputs.has_value()) handles.Fail(accepted.outputs->id, gone);
    if (accepted.graph.has_value()) handles.Fail(accepted.graph->id, gone);
    return;
  }
  if (accepted.outputs.has_value()) settlement_->FulfilValues(accepted.outputs->id, std::move(kept->outputs));
  bool usable = false;
  {
    absl::MutexLock lock(&calls_->mu);
    usable = calls_->training.Rename(kept->graph_id, accepted.graph->id);
  }
  if (!usable) return handles.Fail(accepted.graph->id, GraphConsumed());
  handles.Fulfil(accepted.graph->id, std::move(kept->graph));
}

std::optional<absl::StatusOr<StateAnswer>> Acceptor::StateRecordedBefore(const Call& call) {
  if (journal_ == nullptr) return std::nullopt;
  absl::StatusOr<std::optional<CallJournal::Earlier>> earlier = journal_->FindEarlier(call);
  if (!earlier.ok()) return absl::StatusOr<StateAnswer>(earlier.status());
  // One that failed had no effect, and may be made again.
  if (!earlier->has_value() || !(*earlier)->answer.state.has_value()) return std::nullopt;
  return absl::StatusOr<StateAnswer>(settlement_->Completed(*(*earlier)->answer.state));
}

absl::Status Acceptor::Admit(const Call& call, bool handles_reserved) const {
  if (calls_->state == ServedCalls::State::kDeleting) {
    return Error(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                 absl::StrCat("pipeline ", options_.name, " is being deleted"))
        .With("pipeline", options_.name);
  }
  if (calls_->state == ServedCalls::State::kUnloading) return PipelineUnloading(options_.name);
  if (!calls_->lost.ok()) return PipelineReforming(options_.name);
  if (calls_->state != ServedCalls::State::kReady) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "the pipeline accepts no new work");
  }
  if (!call.training.has_value()) return calls_->inference.CheckNew(call);
  PENSTOCK_RETURN_IF_ERROR(calls_->training.CheckNew(call, options_.clock->NowNanos()));
  if (call.As<ForwardCall>() != nullptr) {
    const int64_t others = options_.handles->CountsOf(options_.name).open_graphs - (handles_reserved ? 1 : 0);
    if (others >= options_.open_graphs) {
      return Error(absl::StatusCode::kResourceExhausted, "GRAPH_LIMIT",
                   absl::StrCat("at most ", options_.open_graphs, " graphs may be open; run or release some"))
          .With("limit_value", std::to_string(options_.open_graphs))
          .With("retry_after_ms", "1000");
    }
  }
  return absl::OkStatus();
}

absl::Status Acceptor::ReserveHandles(const CallPointer& call, const CallResults& results) {
  const auto producer = std::make_shared<Producer>(*calls_, cancellation_, call);
  const auto reserve = [&](HandleKind kind, int64_t bytes, std::optional<HandleName>& name) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(name, options_.handles->Reserve({.owner = call->context.caller,
                                                               .pipeline = options_.name,
                                                               .kind = kind,
                                                               .method = call->method(),
                                                               .bytes = bytes,
                                                               .lease = call->context.lease,
                                                               .producer = producer}));
    return absl::OkStatus();
  };
  if (results.outcome) PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kOutcome, 0, call->accepted.outcome));
  if (results.outputs) {
    PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kValue, results.output_bytes, call->accepted.outputs));
  }
  if (results.graph) PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kGraph, 0, call->accepted.graph));
  return absl::OkStatus();
}

void Acceptor::WithdrawHandles(const Call& call) const {
  for (const HandleName& name : call.accepted.handles()) options_.handles->Withdraw(name.id);
}

void Acceptor::OnInputsReady(const CallPointer& call) {
  {
    absl::MutexLock lock(&calls_->mu);
    Call::Guarded& guarded = calls_->Of(call);
    guarded.inputs_ready = true;  // training waits for its turn all the same
    if (guarded.phase == Call::Phase::kQueued && !call->training.has_value()) calls_->inference.SetReady(call);
  }
  if (call->training.has_value()) AppendReady();
}

absl::StatusOr<Accepted> Acceptor::Accept(CallContext context, Request request) {
  CallSources sources = TakeSources(request);
  const auto call = std::make_shared<Call>(std::move(context), std::move(request));
  call->accepted.request_id = call->context.request_id;
  {
    absl::MutexLock lock(&calls_->mu);
    absl::StatusOr<std::optional<Accepted>> recorded = Recorded(*call);
    if (!recorded.ok()) return Refused(recorded.status());
    if (recorded->has_value()) return **std::move(recorded);
  }
  absl::StatusOr<std::optional<Accepted>> before = RecordedBefore(call);
  if (!before.ok()) return Refused(before.status());
  if (before->has_value()) return **std::move(before);
  {
    absl::MutexLock lock(&calls_->mu);
    if (absl::Status admitted = Admit(*call, /*handles_reserved=*/false); !admitted.ok()) return Refused(admitted);
  }
  absl::StatusOr<CallResults> results = preparation_->Prepare(*call, std::move(sources));
  if (!results.ok()) return Refused(results.status());
  if (const auto& held = call->context.inputs_held; held != nullptr) {
    if (absl::Status exact = held->Resize(call->inputs.inline_bytes()); !exact.ok()) return Refused(std::move(exact));
  }
  // Unless the call is accepted, it leaves nothing behind, whatever fails from here on.
  absl::Cleanup give_up = [&] {
    Guarded("a call that is not accepted", [&] {
      WithdrawHandles(*call);
      settlement_->EndPlace(*call);  // whoever still holds the call
    }).IgnoreError();
  };
  if (absl::Status reserved = ReserveHandles(call, *results); !reserved.ok()) return Refused(std::move(reserved));
  // A weak reference: a call that was cancelled must not live until its inputs are there.
  call->inputs.OnReady(options_.handles, calls_->WhileItLives([this, waiting = std::weak_ptr<Call>(call)] {
    if (const auto ready = waiting.lock()) OnInputsReady(ready);
  }));

  Accepted accepted;
  {
    absl::MutexLock lock(&calls_->mu);  // goes before the call is given up
    absl::StatusOr<std::optional<Accepted>> recorded = Recorded(*call);
    if (!recorded.ok()) return Refused(recorded.status());
    if (recorded->has_value()) return **std::move(recorded);  // an equal call was accepted meanwhile
    if (absl::Status admitted = Admit(*call, /*handles_reserved=*/true); !admitted.ok()) return Refused(admitted);
    Enqueue(*calls_, call);
    absl::Cleanup dequeue = [&] {
      calls_->mu.AssertHeld();
      calls_->RemoveQueued(call);
    };
    calls_->log.Record(call->key(), call->context.payload_digest, call->accepted, call->accepted_nanos);
    accepted = call->accepted;
    std::move(dequeue).Cancel();
  }
  std::move(give_up).Cancel();
  AppendReady();
  return accepted;
}

void Acceptor::AcceptState(CallContext context, Request request, StateCallback done) {
  const auto call = std::make_shared<Call>(std::move(context), std::move(request));
  absl::Status pinned;
  if (const auto* write = call->As<WriteCall>()) {
    absl::StatusOr<CallInputs> inputs = preparation_->PinWritten(call->context.caller, *write);
    pinned = inputs.status();
    if (pinned.ok()) call->inputs = *std::move(inputs);
  }
  JoinedCall<StateAnswer> joined;
  std::optional<absl::StatusOr<StateAnswer>> before = StateRecordedBefore(*call);
  {
    absl::MutexLock lock(&calls_->mu);
    const auto admit = [&]() -> absl::Status {  // of a first attempt; a retry does not need its handles
      calls_->mu.AssertHeld();
      if (!pinned.ok()) return pinned;
      const absl::Status admitted = Admit(*call, /*handles_reserved=*/false);
      return admitted.ok() ? admitted : Refused(admitted);
    };
    if (!before.has_value() || calls_->log.Contains(call->key())) {
      joined = JoinOrAnswer<StateAnswer>(calls_->log, call->key(), call->context.payload_digest,
                                         options_.clock->NowNanos(), done, admit);
    } else {
      joined.now = *std::move(before);
    }
    if (joined.first != nullptr) {
      absl::Cleanup forget = [&] {
        calls_->mu.AssertHeld();
        calls_->log.Erase(call->key());
      };
      call->join = joined.first;
      calls_->Of(call).inputs_ready = true;
      Enqueue(*calls_, call);
      std::move(forget).Cancel();
    }
  }
  if (joined.first != nullptr) return AppendReady();
  settlement_->EndPlace(*call);  // before the caller hears, so that its next call finds it free
  if (joined.now.has_value()) done(*std::move(joined.now));
}

void Acceptor::AcceptRead(CallContext context, ReadCall read, std::shared_ptr<CancelToken> cancel) {
  const SnapshotCallback done = read.done;
  const auto call = std::make_shared<Call>(std::move(context), std::move(read));
  call->cancel = std::move(cancel);
  absl::Status admitted;
  {
    absl::MutexLock lock(&calls_->mu);
    admitted = Admit(*call, /*handles_reserved=*/false);
    if (admitted.ok()) {
      calls_->Of(call).inputs_ready = true;
      return Enqueue(*calls_, call);
    }
  }
  settlement_->EndPlace(*call);  // before the caller hears
  done(Refused(admitted));
}

void Acceptor::AcceptExpiry() {
  std::optional<TrainingParty> holder;
  {
    absl::MutexLock lock(&calls_->mu);
    if (calls_->state != ServedCalls::State::kReady || !calls_->lost.ok()) return;
    holder = calls_->training.Expired(options_.clock->NowNanos());
    if (!holder.has_value()) return;
    const auto call =
        std::make_shared<Call>(CallContext{.caller = holder->caller, .session = holder->session}, ExpireCall{});
    calls_->Of(call).inputs_ready = true;
    Enqueue(*calls_, call);
  }
  AppendReady();
  LogWarning("accumulated gradients are discarded: their lease is over",
             {{"pipeline", options_.name}, {"caller", holder->caller}, {"session", holder->session}});
}

void Acceptor::Enqueue(ServedCalls& calls, const CallPointer& call) {
  Call::Guarded& guarded = calls.Of(call);
  call->accepted_nanos = options_.clock->NowNanos();
  call->accepted.step = calls.training.step();
  if (journal_ != nullptr && CallJournal::Keeps(*call)) {
    guarded.durable = false;
    if (call->join == nullptr) call->accepted.durable = std::make_shared<Durability>();
  }
  absl::Duration timeout = call->context.work_timeout;
  if (timeout == absl::ZeroDuration() && !call->training.has_value()) timeout = options_.infer_timeout;
  if (timeout == absl::ZeroDuration() && call->As<ForwardCall>() != nullptr) timeout = options_.forward_timeout;
  if (timeout > absl::ZeroDuration() && timeout < absl::InfiniteDuration()) {
    guarded.timer = options_.timers->Add(call->accepted_nanos + absl::ToInt64Nanoseconds(timeout),
                                         calls.WhileItLives([this, late = std::weak_ptr<Call>(call)] {
                                           if (const auto running = late.lock()) cancellation_->OnDeadline(running);
                                         }));
  }
  if (call->training.has_value()) {
    calls.training.Add(call);
  } else {
    calls.inference.Add(call);
  }
  guarded.Enter(Call::Phase::kQueued);
  calls.UpdateQueueMetrics();
}

}  // namespace penstock
