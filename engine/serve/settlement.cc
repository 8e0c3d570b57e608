#include "engine/serve/settlement.h"

#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/timer_queue.h"
#include "engine/observe/metrics.h"
#include "engine/serve/joined.h"
#include "engine/tensor/held_values.h"

namespace penstock {

void Settlement::EndPlace(Call& call) {
  std::shared_ptr<void> place;  // goes after the lock
  absl::MutexLock lock(&calls_->mu);
  Call::Guarded& guarded = calls_->Of(call);
  // A run that was told to stop is still there until it does.
  const bool open = guarded.phase == Call::Phase::kQueued || guarded.phase == Call::Phase::kRunning;
  if (!open) place.swap(guarded.place);
}

void Settlement::ReleaseInputs(Call& call) {
  TimerQueue::TimerId timer;
  {
    absl::MutexLock lock(&calls_->mu);
    timer = std::exchange(calls_->Of(call).timer, TimerQueue::kNoTimer);
  }
  timers_->Remove(timer);
  call.inputs = CallInputs();
  call.context.inputs_held.reset();
  call.context.weights.reset();
}

bool Settlement::ForgetUnlessDurable(Call& call) {
  if (call.accepted.durable == nullptr) return true;
  absl::MutexLock lock(&calls_->mu);
  if (calls_->Of(call).durable) return true;
  calls_->log.Erase(call.key());
  return false;
}

void Settlement::Fail(const CallPointer& call, const absl::Status& error) {
  EndPlace(*call);
  const bool accepted = ForgetUnlessDurable(*call);  // before anybody hears of it, and asks again
  const absl::Status told = FailHandles(*call, error);
  if (!accepted) call->accepted.durable->Settle(told);
  if (call->join != nullptr) AnswerState(*call, told);
  AnswerRead(*call, told);
  // A run that goes on still reads its inputs.
  bool done = false;
  {
    absl::MutexLock lock(&calls_->mu);
    done = calls_->Of(call).phase == Call::Phase::kDone;
  }
  if (!done || call->started_nanos != 0) return;  // of one that ran, who ran it tells and lets go
  Guarded("the report of a call", [&] { ReportEnd(*call, 0, error); }).IgnoreError();
  ReleaseInputs(*call);
}

void Settlement::FailRun(const CallPointer& call, const absl::Status& error) {
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->Of(call).Finish();
  }
  Fail(call, error);
  ReleaseInputs(*call);
}

absl::Status Settlement::FailHandles(const Call& call, const absl::Status& error) {
  absl::Status told = WithValue(error, "pipeline", name_);
  if (call.context.observer != nullptr) {
    for (const auto& [name, id] : call.context.observer->Ids()) told = WithValue(std::move(told), name, id);
  }
  for (const HandleName& name : call.accepted.handles()) {
    if (ReasonOf(told) == "WORK_CANCELLED") {
      handles_->Cancel(name.id);
    } else {
      handles_->Fail(name.id, told);
    }
  }
  return told;
}

void Settlement::AnswerState(const Call& call, absl::StatusOr<StateAnswer> answer) {
  const absl::Status error = answer.status();
  std::vector<StateCallback> callbacks;
  {
    absl::MutexLock lock(&calls_->mu);
    callbacks = Settle(calls_->log, call.key(), *call.join, std::move(answer));
  }
  TellAll("the answer of a call", callbacks, [&](bool) -> absl::StatusOr<StateAnswer> {
    if (!error.ok()) return error;
    return *call.join->answer;
  });
}

void Settlement::AnswerRead(const Call& call, absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> snapshot) {
  const auto* read = call.As<ReadCall>();
  if (read == nullptr) return;
  // Handed over whole: no share of it outlives what the reader does with it.
  Guarded("the answer of a read", [&] { read->done(std::move(snapshot)); }).IgnoreError();
}

void Settlement::Invalidate(const Call& call, const std::vector<HandleId>& stale_graphs) {
  for (const HandleId& id : stale_graphs) {
    handles_->Invalidate(
        id, Error(absl::StatusCode::kFailedPrecondition, "GRAPH_STALE", "the weights have changed since this forward"));
  }
  if (const auto* backward = call.As<BackwardCall>(); backward != nullptr && !backward->retain_graph) {
    handles_->Invalidate(backward->graph.id, GraphConsumed());
  }
}

CallAnswer Settlement::AnswerOf(const Call& call, const Executed& executed, const std::string& token) const {
  CallAnswer answer{.has_outputs = call.accepted.outputs.has_value(), .has_graph = call.accepted.graph.has_value()};
  if (call.join != nullptr) {
    answer.state =
        StateAnswer{executed.checkpoint.value_or(CheckpointInfo()), executed.run.step, token, call.accepted.sequence};
    return answer;
  }
  answer.outcome = CallOutcome{executed.run, call.accepted.sequence, token};
  answer.outcome->run.outputs.clear();
  answer.outcome->run.input_gradients.clear();
  return answer;
}

CallAnswer Settlement::AnswerOf(const Call& call, const absl::Status& error) const {
  return {.error = WithValue(error, "pipeline", name_),
          .has_outputs = call.accepted.outputs.has_value(),
          .has_graph = call.accepted.graph.has_value()};
}

StateAnswer Settlement::Completed(StateAnswer answer) const {
  if (answer.checkpoint.id.empty()) return answer;
  if (absl::StatusOr<CheckpointInfo> info = checkpoints_->Find(answer.checkpoint.id); info.ok()) {
    answer.checkpoint = *std::move(info);
  }
  answer.checkpoint.pipeline = name_;
  return answer;
}

void Settlement::Fulfil(Call& call, Executed executed, const std::string& token) {
  EndPlace(call);
  if (call.join != nullptr) {
    AnswerState(call, StateAnswer{std::move(executed.checkpoint).value_or(CheckpointInfo()), executed.run.step, token,
                                  call.accepted.sequence, executed.compacted});
  } else if (call.As<ReadCall>() != nullptr) {
    AnswerRead(call, std::move(executed.snapshot));
  } else {
    FulfilHandles(call, std::move(executed), token);
  }
}

void Settlement::FulfilHandles(const Call& call, Executed executed, const std::string& token) {
  const Accepted& accepted = call.accepted;
  NamedValues outputs = std::exchange(executed.run.outputs, {});
  // First, for it tells what the call has changed: no failure below makes it another.
  if (accepted.outcome.has_value()) {
    handles_->Fulfil(accepted.outcome->id, CallOutcome{std::move(executed.run), accepted.sequence, token});
  }
  if (accepted.outputs.has_value()) FulfilValues(accepted.outputs->id, std::move(outputs));
  if (accepted.graph.has_value()) handles_->Fulfil(accepted.graph->id, std::move(executed.graph));
}

void Settlement::FulfilValues(const HandleId& id, NamedValues values) {
  absl::StatusOr<HeldValues> held = HoldValues(std::move(values));
  if (held.ok()) {
    handles_->Fulfil(id, *std::move(held));
  } else {
    handles_->Fail(id, held.status());
  }
}

void Settlement::CountStart(const Call& call) {
  const std::shared_ptr<PipelineMetrics> metrics = this->metrics();
  if (metrics == nullptr) return;
  const WorkQueue queue = call.training.has_value() ? WorkQueue::kTrain : WorkQueue::kInfer;
  metrics->queues[queue].wait.Observe(call.started_nanos - call.accepted_nanos);
  if (call.mode.has_value()) metrics->BatchStarted(*call.mode);
}

void Settlement::RecordEnd(const Call& call, int64_t step, const absl::Status& status, const Executed* executed) {
  Guarded("the count of a call", [&] { CountEnd(call, status, executed); }).IgnoreError();
  Guarded("the report of a call", [&] { ReportEnd(call, step, status); }).IgnoreError();
}

void Settlement::CountEnd(const Call& call, const absl::Status& status, const Executed* executed) {
  LogCheckpoint(call, status, executed);
  const std::shared_ptr<PipelineMetrics> metrics = this->metrics();
  if (metrics == nullptr) return;
  const int64_t nanos = clock_->NowNanos() - call.accepted_nanos;
  if (call.mode.has_value()) {
    const BatchOutcome outcome = status.ok()
                                     ? BatchOutcome::kOk
                                     : (absl::IsCancelled(status) ? BatchOutcome::kCancelled : BatchOutcome::kFailed);
    metrics->BatchEnded(*call.mode, outcome, executed == nullptr ? 0 : executed->run.rows, nanos);
  }
  if (call.As<SaveCall>() != nullptr) {
    metrics->CheckpointEnded(CheckpointOperation::kSave, status.ok(), nanos);
    if (executed != nullptr) metrics->checkpoint_bytes.Set(static_cast<double>(executed->checkpoint->bytes));
  }
  if (call.As<RestoreCall>() != nullptr) {
    metrics->CheckpointEnded(CheckpointOperation::kRestore, status.ok(), nanos);
  }
  // A save is told when later steps may have ended.
  if (executed == nullptr || !call.training.has_value() || call.As<SaveCall>() != nullptr) return;
  const RunOutcome& run = executed->run;
  metrics->step_number.Set(static_cast<double>(run.step));
  if (run.loss.has_value()) metrics->loss.Set(*run.loss);
  const bool stepped = call.training == TrainingCall::kApply || call.training == TrainingCall::kTrainStep;
  if (stepped && run.applied == false) {
    const bool loss = run.loss.has_value() && !std::isfinite(*run.loss);
    metrics->nonfinite_steps[loss ? NonfiniteKind::kLoss : NonfiniteKind::kGradient].Add();
  }
}

void Settlement::LogCheckpoint(const Call& call, const absl::Status& status, const Executed* executed) const {
  std::string what;
  std::string id;
  if (const auto* save = call.As<SaveCall>()) {
    what = status.ok() ? "checkpoint saved" : "checkpoint not saved";
    id = save->id.empty() ? "step-" + std::to_string(call.accepted.step) : save->id;
  } else if (const auto* restore = call.As<RestoreCall>()) {
    what = status.ok() ? "checkpoint restored" : "checkpoint not restored";
    id = restore->id;
  } else if (const auto* copy = call.As<CopyCall>()) {
    what = status.ok() ? "checkpoint copied" : "checkpoint not copied";
    id = copy->id.empty() ? copy->source_id : copy->id;
  } else if (const auto* removed = call.As<DeleteCall>(); removed != nullptr && status.ok()) {
    what = "checkpoint deleted";
    id = removed->id;
  } else {
    return;
  }
  if (executed != nullptr) id = executed->checkpoint->id;
  const int64_t step = executed != nullptr ? executed->run.step : call.accepted.step;
  Log(status.ok() ? LogLevel::kInfo : LogLevel::kWarning, what,
      {{"pipeline", name_}, {"checkpoint", id}, {"step", std::to_string(step)}, {"reason", ReasonOf(status)}});
}

void Settlement::ReportEnd(const Call& call, int64_t step, const absl::Status& status) {
  CallSpan span{.method = call.method(),
                .request_id = call.context.request_id,
                .accepted_nanos = call.accepted_nanos,
                .started_nanos = call.started_nanos,
                .ended_nanos = clock_->NowNanos(),
                .step = step,
                .failed = !status.ok()};
  const int64_t ended_nanos = span.ended_nanos;
  if (call.context.observer != nullptr) {
    for (const auto& [name, id] : call.context.observer->Ids()) {
      if (name == "trace_id") span.trace_id = id;
    }
  }
  {
    absl::MutexLock lock(&mu_);
    if (ended_.size() == kMaxEndedCalls) ended_.pop_front();
    ended_.push_back(std::move(span));
  }
  if (call.context.observer == nullptr) return;
  const auto mode =
      call.mode.has_value() ? std::string_view(kBatchModeNames[static_cast<size_t>(*call.mode)]) : std::string_view();
  call.context.observer->OnEnded({.pipeline = name_,
                                  .method = call.method(),
                                  .mode = mode,
                                  .accepted_nanos = call.accepted_nanos,
                                  .started_nanos = call.started_nanos,
                                  .ended_nanos = ended_nanos,
                                  .step = step,
                                  .status = status});
}

std::vector<CallSpan> Settlement::EndedCalls() const {
  absl::MutexLock lock(&mu_);
  return {ended_.begin(), ended_.end()};
}

std::vector<std::pair<std::string, std::string>> Settlement::LogFieldsOf(const Call& call, int64_t step) const {
  std::vector<std::pair<std::string, std::string>> fields = {{"pipeline", name_}};
  if (step > 0) fields.emplace_back("step", std::to_string(step));
  if (!call.context.request_id.empty()) fields.emplace_back("request_id", call.context.request_id);
  if (call.context.observer == nullptr) return fields;
  for (auto& id : call.context.observer->Ids()) fields.push_back(std::move(id));
  return fields;
}

}  // namespace penstock
