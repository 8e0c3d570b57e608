// What each method of a ServedPipeline asks for: its parameters, its checks, its results.

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/serve/served_pipeline.h"
#include "engine/tensor/microbatch.h"

namespace penstock {
namespace {

absl::Status CheckPositive(std::string_view field, std::optional<int64_t> value) {
  if (!value.has_value() || *value >= 1) return absl::OkStatus();
  return InvalidField(field, "must be at least 1", std::to_string(*value));
}

// The dimension of an output that its signature leaves open: the batch first, then whatever the inputs have there.
int64_t OpenDimension(const NamedValues& inputs, size_t index, int64_t rows) {
  if (index == 0) return rows;
  int64_t largest = 1;
  for (const NamedValue& input : inputs) {
    const at::Tensor* tensor = input.value.any_tensor();
    if (tensor != nullptr && static_cast<int64_t>(index) < tensor->dim()) {
      largest = std::max(largest, tensor->size(static_cast<int64_t>(index)));
    }
  }
  return largest;
}

// Of the first tensor that is split.
int64_t RowsOf(const NamedValues& inputs) {
  for (const NamedValue& input : inputs) {
    if (input.value.is_tensor() && input.value.tensor()->dim() > 0) return input.value.tensor()->size(0);
  }
  return 0;
}

}  // namespace

absl::StatusOr<at::Tensor> TargetOf(const NamedValue& target) {
  if (target.value.is_tensor()) return *target.value.tensor();
  const std::string type = target.value.is_whole() ? "a whole one" : target.value.TypeName();
  return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE", "target: expected Tensor, but got " + type)
      .With("field", "target")
      .With("value", type);
}

absl::Status ServedPipeline::CheckTensors(Work& work) const {
  const bool takes_inputs = work.batch_mode().has_value() && work.method != WorkMethod::kBackward;
  if (!takes_inputs || work.inputs_checked || !work.inputs.ready()) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(NamedValues inputs, work.inputs.Take());
  std::optional<at::Tensor> target;
  if (work.has_target) {
    PENSTOCK_ASSIGN_OR_RETURN(target, TargetOf(inputs.back()));
    inputs.pop_back();
  }
  PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckOutputs(work.outputs));
  PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckInputs(inputs));
  work.rows = RowsOf(inputs);
  if (work.contributes) {
    PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckTarget(target.value_or(at::Tensor()), work.loss, work.rows));
  }
  if (work.total_rows.has_value() && *work.total_rows < work.rows) {
    return InvalidField("total_rows", absl::StrCat("must be at least the number of rows, ", work.rows),
                        std::to_string(*work.total_rows));
  }
  work.inputs_checked = true;
  return absl::OkStatus();
}

int64_t ServedPipeline::ExpectedOutputBytes(const Work& work) const {
  if (!work.inputs.ready()) return 0;  // charged when they are there
  const absl::StatusOr<NamedValues> inputs = work.inputs.Take();
  if (!inputs.ok()) return 0;
  int64_t bytes = 0;
  for (const TensorSignature& output : pipeline_->signature().outputs) {
    const bool wanted =
        work.outputs.empty() || std::find(work.outputs.begin(), work.outputs.end(), output.name) != work.outputs.end();
    if (!wanted) continue;
    std::vector<int64_t> shape = output.shape;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] < 0) shape[i] = OpenDimension(*inputs, i, work.rows);
    }
    const absl::StatusOr<int64_t> one = PayloadBytes(output.type, shape, output.name);
    // What can't be counted can't fit: the budget refuses it.
    if (!one.ok() || *one > (int64_t{1} << 50)) return std::numeric_limits<int64_t>::max() / 4;
    bytes += *one;
  }
  return bytes;
}

absl::StatusOr<Accepted> ServedPipeline::Infer(CallContext context, InferCall call) {
  auto work = std::make_shared<Work>();
  work->method = WorkMethod::kInfer;
  work->context = std::move(context);
  work->outputs = std::move(call.outputs);
  work->micro_batches = call.micro_batches;
  work->priority = call.priority;
  return Accept(work, [&](Work& w) -> absl::StatusOr<Results> {
    PENSTOCK_RETURN_IF_ERROR(CheckPositive("micro_batches", w.micro_batches));
    PENSTOCK_ASSIGN_OR_RETURN(w.inputs,
                              CallInputs::Make(options_.handles, w.context.caller, std::move(call.inputs), "inputs"));
    PENSTOCK_RETURN_IF_ERROR(CheckTensors(w));
    w.queue_weight = w.micro_batches.value_or(pipeline_->plan().schedule.micro_batches);
    return Results{.outputs = true, .output_bytes = ExpectedOutputBytes(w)};
  });
}

absl::StatusOr<Accepted> ServedPipeline::Forward(CallContext context, ForwardCall call) {
  auto work = std::make_shared<Work>();
  work->method = WorkMethod::kForward;
  work->training = TrainingCall::kForward;
  work->context = std::move(context);
  work->input_gradients = call.input_gradients;
  work->outputs = std::move(call.outputs);
  work->micro_batches = call.micro_batches;
  return Accept(work, [&](Work& w) -> absl::StatusOr<Results> {
    PENSTOCK_RETURN_IF_ERROR(CheckPositive("micro_batches", w.micro_batches));
    PENSTOCK_ASSIGN_OR_RETURN(w.inputs,
                              CallInputs::Make(options_.handles, w.context.caller, std::move(call.inputs), "inputs"));
    PENSTOCK_RETURN_IF_ERROR(CheckTensors(w));
    w.queue_weight = w.micro_batches.value_or(pipeline_->plan().schedule.micro_batches);
    return Results{.outputs = true, .graph = true, .output_bytes = ExpectedOutputBytes(w)};
  });
}

absl::StatusOr<Accepted> ServedPipeline::Backward(CallContext context, BackwardCall call) {
  auto work = std::make_shared<Work>();
  work->method = WorkMethod::kBackward;
  work->training = TrainingCall::kContribution;
  work->context = std::move(context);
  work->retain_graph = call.retain_graph;
  work->accumulation_lease = call.accumulation_lease;
  work->input_gradients = call.input_gradients;
  return Accept(work, [&](Work& w) -> absl::StatusOr<Results> {
    absl::StatusOr<HandlePin> graph = options_.handles->Pin(w.context.caller, call.graph);
    if (!graph.ok()) return WithValue(graph.status(), "field", "graph");
    if (graph->kind() != HandleKind::kGraph) return WithValue(graph->graph().status(), "field", "graph");
    if (call.graph.pipeline != options_.name) {
      return InvalidField("graph", "must be a graph of pipeline " + options_.name, ToString(call.graph));
    }
    // One that was consumed or is stale is refused at once.
    if (graph->settled()) PENSTOCK_RETURN_IF_ERROR(graph->graph().status());
    PENSTOCK_ASSIGN_OR_RETURN(
        w.inputs, CallInputs::Make(options_.handles, w.context.caller, std::move(call.gradients), "gradients"));
    if (graph->settled() && w.inputs.ready()) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Graph> kept, graph->graph());
      PENSTOCK_ASSIGN_OR_RETURN(const NamedValues values, w.inputs.Take());
      PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors gradients, ToTensors(values));
      PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckGradients(*kept, gradients));
    }
    w.graph_pin = w.inputs.AddPin(*std::move(graph));
    return Results{.outcome = true, .outputs = w.input_gradients};
  });
}

absl::StatusOr<Accepted> ServedPipeline::ForwardBackward(CallContext context, ContributionCall call) {
  return Contribute(std::move(context), std::move(call),
                    Work{.method = WorkMethod::kForwardBackward, .training = TrainingCall::kContribution});
}

absl::StatusOr<Accepted> ServedPipeline::TrainStep(CallContext context, ContributionCall call, StepCall step) {
  return Contribute(
      std::move(context), std::move(call),
      Work{.method = WorkMethod::kTrainStep, .training = TrainingCall::kTrainStep, .step = std::move(step.request)});
}

absl::StatusOr<Accepted> ServedPipeline::Contribute(CallContext context, ContributionCall call, Work parameters) {
  auto work = std::make_shared<Work>(std::move(parameters));
  work->context = std::move(context);
  work->loss = std::move(call.loss);
  work->micro_batches = call.micro_batches;
  work->total_rows = call.total_rows;
  work->total_elements = call.total_elements;
  work->outputs = std::move(call.outputs);
  work->accumulation_lease = call.accumulation_lease;
  work->contributes = true;
  work->has_target = call.target.has_value();
  return Accept(work, [&](Work& w) -> absl::StatusOr<Results> {
    PENSTOCK_RETURN_IF_ERROR(CheckPositive("micro_batches", w.micro_batches));
    PENSTOCK_RETURN_IF_ERROR(CheckPositive("total_rows", w.total_rows));
    PENSTOCK_RETURN_IF_ERROR(CheckPositive("total_elements", w.total_elements));
    PENSTOCK_ASSIGN_OR_RETURN(w.inputs,
                              CallInputs::Make(options_.handles, w.context.caller, std::move(call.inputs), "inputs"));
    if (call.target.has_value()) {
      std::vector<InputSource> target;
      target.push_back(*std::move(call.target));
      PENSTOCK_ASSIGN_OR_RETURN(CallInputs targets,
                                CallInputs::Make(options_.handles, w.context.caller, std::move(target), "target"));
      w.inputs.Append(std::move(targets));
    }
    PENSTOCK_RETURN_IF_ERROR(CheckTensors(w));
    w.queue_weight = w.micro_batches.value_or(pipeline_->plan().schedule.micro_batches);
    const bool keeps = !w.outputs.empty();
    return Results{.outcome = true, .outputs = keeps, .output_bytes = keeps ? ExpectedOutputBytes(w) : 0};
  });
}

absl::StatusOr<Accepted> ServedPipeline::OptimizerStep(CallContext context, StepCall call) {
  auto work = std::make_shared<Work>();
  work->method = WorkMethod::kOptimizerStep;
  const TrainingCall discard = call.force ? TrainingCall::kDiscardForced : TrainingCall::kDiscard;
  work->training = call.discard ? discard : TrainingCall::kApply;
  work->context = std::move(context);
  work->step = std::move(call.request);
  return Accept(work, [](Work&) { return Results{.outcome = true}; });
}

void ServedPipeline::SaveCheckpoint(CallContext context, std::string id, StateCallback done) {
  auto work = std::make_shared<Work>();
  work->method = WorkMethod::kSaveCheckpoint;
  work->training = TrainingCall::kSave;
  work->context = std::move(context);
  work->checkpoint_id = std::move(id);
  AcceptState(work, std::move(done));
}

void ServedPipeline::DeleteCheckpoint(CallContext context, std::string id, StateCallback done) {
  auto work = std::make_shared<Work>();
  work->method = WorkMethod::kDeleteCheckpoint;
  work->training = TrainingCall::kDeleteCheckpoint;
  work->context = std::move(context);
  work->checkpoint_id = std::move(id);
  AcceptState(work, std::move(done));
}

void ServedPipeline::RestoreCheckpoint(CallContext context, std::string id, bool force, StateCallback done) {
  auto work = std::make_shared<Work>();
  work->method = WorkMethod::kRestoreCheckpoint;
  work->training = force ? TrainingCall::kRestoreForced : TrainingCall::kRestore;
  work->context = std::move(context);
  work->checkpoint_id = std::move(id);
  work->force = force;
  AcceptState(work, std::move(done));
}

void ServedPipeline::WriteParameters(CallContext context, WriteCall call, StateCallback done) {
  auto work = std::make_shared<Work>();
  work->method = WorkMethod::kWriteParameters;
  work->training = call.force ? TrainingCall::kRestoreForced : TrainingCall::kRestore;
  work->context = std::move(context);
  for (const HandleName& handle : call.handles) {
    absl::StatusOr<HandlePin> pin = options_.handles->Pin(work->context.caller, handle);
    const absl::Status refused = !pin.ok() ? pin.status() : pin->tensors().status();
    if (!refused.ok()) return done(WithValue(refused, "field", "handles"));
    work->inputs.AddPin(*std::move(pin));
    ++work->written_handles;
  }
  work->written_step = call.step;
  AcceptState(work, std::move(done));
}

// A save, restore, write or delete: no handles, so the callers wait in a StateJoin, which the request log knows from acceptance on.
void ServedPipeline::AcceptState(WorkPointer work, StateCallback done) {
  std::optional<absl::StatusOr<StateAnswer>> now;
  {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<std::optional<RecordedAnswer>> recorded = Recorded(*work);
    if (!recorded.ok()) {
      now = recorded.status();
    } else if (recorded->has_value()) {
      const auto join = std::get<std::shared_ptr<StateJoin>>(**recorded);
      if (join->answer.has_value()) {
        now = *join->answer;
      } else {
        join->callbacks.push_back(std::move(done));
      }
    } else if (absl::Status admitted = Admit(*work, /*handles_reserved=*/false); !admitted.ok()) {
      now = Refused(admitted);
    } else {
      work->join = std::make_shared<StateJoin>();
      work->join->callbacks.push_back(std::move(done));
      work->inputs_ready = true;
      Enqueue(work);
      log_.Record(work->key(), work->context.payload_digest, work->join, work->accepted_nanos);
    }
  }
  if (now.has_value()) done(*std::move(now));
}

void ServedPipeline::AnswerState(const WorkPointer& work, absl::StatusOr<StateAnswer> answer) {
  std::vector<StateCallback> callbacks;
  {
    absl::MutexLock lock(&mu_);
    callbacks.swap(work->join->callbacks);
    if (answer.ok()) {
      work->join->answer = *answer;
    } else {
      log_.Erase(work->key());  // it had no effect: a retry is a first attempt
    }
  }
  for (const StateCallback& callback : callbacks) callback(answer);
}

void ServedPipeline::ReadParameters(std::vector<std::string> names, bool with_optimizer, SnapshotCallback done) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) {
      refused = Error(absl::StatusCode::kUnavailable, "DRAINING", "the pipeline is closing");
    } else if (snapshots_.size() >= kMostSnapshotRequests) {
      refused = Error(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                      absl::StrCat("at most ", kMostSnapshotRequests, " reads of parameters may wait"))
                    .With("queue", "parameters")
                    .With("limit", "requests")
                    .With("limit_value", absl::StrCat(kMostSnapshotRequests))
                    .With("retry_after_ms", "100");
    } else {
      snapshots_.push_back({std::move(names), with_optimizer, std::move(done)});
      return;
    }
  }
  done(Refused(std::move(refused)));
}

}  // namespace penstock
