#include "engine/serve/call_replay.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/handles/handle_store.h"
#include "engine/serve/pipeline_errors.h"
#include "engine/tensor/held_values.h"

namespace penstock {
namespace {

// What changes files beside the state, whose effect is there when it has an outcome. Told by the name, for the call itself
// may not be readable any more: the pipeline that a checkpoint was copied from may be gone with all of its files.
bool OnlyFiles(const std::string& method) {
  return method == "SaveCheckpoint" || method == "CopyCheckpoint" || method == "DeleteCheckpoint";
}

bool SameNumber(std::optional<double> a, std::optional<double> b) {
  if (a.has_value() != b.has_value()) return false;
  return !a.has_value() || *a == *b || (std::isnan(*a) && std::isnan(*b));
}

bool Same(const RunOutcome& a, const RunOutcome& b) {
  return SameNumber(a.loss, b.loss) && SameNumber(a.gradient_norm, b.gradient_norm) &&
         SameNumber(a.learning_rate, b.learning_rate) && a.applied == b.applied && a.step == b.step;
}

}  // namespace

absl::StatusOr<ReplayReport> CallReplay::Run(int64_t from) {
  PENSTOCK_RETURN_IF_ERROR(FindUses());
  PENSTOCK_RETURN_IF_ERROR(
      parts_.journal->journal().Read(0, [&](CallRow row) { return Repeat(std::move(row), from); }));
  parts_.journal->AwaitSettled();
  PENSTOCK_RETURN_IF_ERROR(parts_.journal->health());
  return report_;
}

absl::Status CallReplay::FindUses() {
  return parts_.journal->journal().Read(0, [this](const CallRow& row) {
    const bool made = row.outcome.status == CallStatus::kDone || row.outcome.status == CallStatus::kAccepted;
    if (row.forward_sequence != 0 && made) last_use_[row.forward_sequence] = row.sequence;
    return absl::OkStatus();
  });
}

absl::Status CallReplay::Repeat(CallRow row, int64_t from) {
  if (parts_.wanted && !parts_.wanted()) return CancelledCall();
  const bool open = row.outcome.status == CallStatus::kAccepted;
  const bool done = row.outcome.status == CallStatus::kDone;
  {
    absl::MutexLock lock(&parts_.calls->mu);
    parts_.calls->training.SkipTo(row.sequence);
  }
  if (!open && (!done || row.sequence <= from)) return absl::OkStatus();
  if (done && OnlyFiles(row.method)) return absl::OkStatus();
  const absl::Status repeated = [&]() -> absl::Status {
    absl::StatusOr<Made> made = Make(row);
    if (!made.ok() && open && !absl::IsDataLoss(made.status())) return FinishRow(row, made.status());
    PENSTOCK_RETURN_IF_ERROR(made.status());
    const CallPointer& call = made->call;
    call->repeated = true;
    call->again = open;
    if (done) call->context.expected_state.clear();  // it was as expected
    const absl::StatusOr<Executed> executed = parts_.training->Repeat(call);
    if (IsRankLost(executed.status())) return executed.status();  // the next replay makes it
    if (call->accepted.graph.has_value()) KeepForward(row, call, executed);
    if (open) {
      ++report_.finished;
      PENSTOCK_RETURN_IF_ERROR(Finish(*made, executed));
    } else {
      ++report_.repeated;
      PENSTOCK_RETURN_IF_ERROR(executed.status());
      PENSTOCK_RETURN_IF_ERROR(Compare(row, call, executed));
    }
    return absl::OkStatus();
  }();
  LetGo(row);
  if (repeated.ok()) return repeated;
  return WithPrefix(WithValue(repeated, "sequence", absl::StrCat(row.sequence)),
                    absl::StrCat("call ", row.sequence, " of the journal, ", row.method, ", can't be made again: "));
}

absl::StatusOr<CallReplay::Made> CallReplay::Make(const CallRow& row) {
  std::vector<RecordedInput> inputs;
  for (const StoredInput& input : row.inputs) {
    PENSTOCK_ASSIGN_OR_RETURN(std::string bytes, parts_.journal->journal().ReadInput(input));
    inputs.push_back({input.header, std::move(bytes)});
  }
  PENSTOCK_ASSIGN_OR_RETURN(RepeatedCall repeated,
                            parts_.journal->records().ReadCall(row.method, row.parameters, inputs));
  repeated.context.caller = row.identity;
  repeated.context.request_id = row.request_id;
  PENSTOCK_RETURN_IF_ERROR(BindHandles(row, repeated));
  CallSources sources = TakeSources(repeated.request);
  const auto call = std::make_shared<Call>(std::move(repeated.context), std::move(repeated.request));
  CallResults results;
  if (const auto* write = call->As<WriteCall>()) {
    absl::StatusOr<CallInputs> written = parts_.preparation->PinWritten(row.identity, *write);
    for (const HandleName& handle : write->handles) parts_.handles->Withdraw(handle.id);  // pinned, it stays so long
    PENSTOCK_ASSIGN_OR_RETURN(call->inputs, std::move(written));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(results, parts_.preparation->Prepare(*call, std::move(sources)));
    if (results.graph) {
      PENSTOCK_ASSIGN_OR_RETURN(call->accepted.graph, Reserve(row.identity, HandleKind::kGraph, call->method(), 0));
    }
  }
  call->accepted.sequence = row.sequence;
  // A call without handles has others who wait for it, of whom none is left.
  const bool has_handles = call->mode.has_value() || call->As<StepCall>() != nullptr;
  if (!has_handles) call->join = std::make_shared<StateJoin>();
  return Made{call, results};
}

absl::Status CallReplay::BindHandles(const CallRow& row, RepeatedCall& repeated) {
  if (auto* write = std::get_if<WriteCall>(&repeated.request)) {
    NamedValues values;
    int64_t bytes = 0;
    for (const NamedTensor& tensor : repeated.written) {
      bytes += static_cast<int64_t>(tensor.tensor.nbytes());
      values.push_back({tensor.name, Value(tensor.tensor)});
    }
    PENSTOCK_ASSIGN_OR_RETURN(HandleName handle, Reserve(row.identity, HandleKind::kValue, "WriteParameters", bytes));
    PENSTOCK_ASSIGN_OR_RETURN(HeldValues held, HoldValues(std::move(values)));
    parts_.handles->Fulfil(handle.id, std::move(held));
    write->handles = {std::move(handle)};
  }
  if (auto* backward = std::get_if<BackwardCall>(&repeated.request)) {
    const auto graph = graphs_.find(row.forward_sequence);
    if (graph == graphs_.end()) {
      return Error(absl::StatusCode::kFailedPrecondition, "GRAPH_STALE",
                   absl::StrCat("the forward of sequence ", row.forward_sequence, " has no graph"));
    }
    backward->graph = graph->second;
  }
  return absl::OkStatus();
}

absl::StatusOr<HandleName> CallReplay::Reserve(const std::string& owner, HandleKind kind, const char* method,
                                               int64_t bytes) const {
  return parts_.handles->Reserve({.owner = owner,
                                  .pipeline = parts_.pipeline,
                                  .kind = kind,
                                  .method = method,
                                  .bytes = bytes,
                                  .lease = parts_.handles->options().max_lease});
}

absl::Status CallReplay::AwaitRecorded(const std::function<void(PipelineJournal::Done)>& record) const {
  absl::Notification done;
  absl::Status recorded;
  record([&](const absl::Status& status) {
    recorded = status;
    done.Notify();
  });
  done.WaitForNotification();
  return recorded;
}

absl::Status CallReplay::Finish(const Made& made, const absl::StatusOr<Executed>& executed) {
  std::string token;
  {
    absl::MutexLock lock(&parts_.calls->mu);
    token = parts_.calls->training.token();
  }
  CallAnswer answer = executed.ok() ? parts_.settlement->AnswerOf(*made.call, *executed, token)
                                    : parts_.settlement->AnswerOf(*made.call, executed.status());
  answer.has_outputs = made.results.outputs;
  return AwaitRecorded(
      [&](PipelineJournal::Done done) { parts_.journal->RecordEnd(made.call, answer, std::move(done)); });
}

absl::Status CallReplay::FinishRow(const CallRow& row, const absl::Status& error) {
  ++report_.finished;
  JournalOutcome outcome{.status = CallStatus::kFailed,
                         .settled_unix_nanos = row.accepted_unix_nanos,
                         .bytes = parts_.journal->records().WriteAnswer({.error = error})};
  return AwaitRecorded([&](PipelineJournal::Done done) {
    parts_.journal->journal().RecordOutcome(row.sequence, std::move(outcome), std::move(done));
  });
}

absl::Status CallReplay::Compare(const CallRow& row, const CallPointer& call,
                                 const absl::StatusOr<Executed>& executed) {
  PENSTOCK_ASSIGN_OR_RETURN(const CallAnswer before, parts_.journal->records().ReadAnswer(row.outcome.bytes));
  if (!before.outcome.has_value() || Same(before.outcome->run, executed->run)) return absl::OkStatus();
  if (report_.differing++ == 0) {
    LogWarning("a repeated call went otherwise than before",
               {{"pipeline", parts_.pipeline},
                {"method", call->method()},
                {"sequence", absl::StrCat(row.sequence)},
                {"loss_before", absl::StrCat(before.outcome->run.loss.value_or(0))},
                {"loss_now", absl::StrCat(executed->run.loss.value_or(0))}});
  }
  return absl::OkStatus();
}

void CallReplay::KeepForward(const CallRow& row, const CallPointer& call, const absl::StatusOr<Executed>& executed) {
  const HandleName& name = *call->accepted.graph;
  if (executed.ok() && last_use_.contains(row.sequence)) {
    parts_.handles->Fulfil(name.id, executed->graph);
    graphs_.emplace(row.sequence, name);
  } else {
    parts_.handles->Withdraw(name.id);
  }
  if (!executed.ok()) return;
  // Also of one whose Backward has come: its caller may not know that, and asks for both again.
  parts_.journal->Keep(row.sequence, {name.id, executed->graph, executed->run.outputs, call->context.lease},
                       parts_.kept_forwards);
}

void CallReplay::LetGo(const CallRow& row) {
  const auto use = last_use_.find(row.forward_sequence);
  if (use == last_use_.end() || use->second != row.sequence) return;
  if (const auto graph = graphs_.extract(row.forward_sequence)) parts_.handles->Withdraw(graph.mapped().id);
}

}  // namespace penstock
