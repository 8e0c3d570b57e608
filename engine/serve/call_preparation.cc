#include "engine/serve/call_preparation.h"

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/exec/pipeline.h"
#include "engine/handles/handle_store.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {
namespace {

CallSources TakeSources(ContributionCall& contribution) {
  CallSources sources{std::exchange(contribution.inputs, {}), contribution.target, contribution.weights};
  if (contribution.target.has_value()) contribution.target->source = at::Tensor();
  if (contribution.weights.has_value()) contribution.weights->source = at::Tensor();
  return sources;
}

}  // namespace

CallSources TakeSources(Request& request) {
  if (auto* infer = std::get_if<InferCall>(&request)) return {std::exchange(infer->inputs, {})};
  if (auto* evaluate = std::get_if<EvaluateCall>(&request)) return TakeSources(evaluate->batch);
  if (auto* forward = std::get_if<ForwardCall>(&request)) return {std::exchange(forward->inputs, {})};
  if (auto* backward = std::get_if<BackwardCall>(&request)) return {std::exchange(backward->gradients, {})};
  if (auto* contribution = std::get_if<ContributionCall>(&request)) return TakeSources(*contribution);
  if (auto* step = std::get_if<TrainStepCall>(&request)) return TakeSources(step->contribution);
  return {};
}

absl::StatusOr<CallResults> CallPreparation::Prepare(Call& call, CallSources sources) const {
  if (const auto* infer = call.As<InferCall>()) {
    return PrepareForward(call, std::move(sources), infer->request.micro_batches);
  }
  if (const auto* forward = call.As<ForwardCall>()) {
    PENSTOCK_ASSIGN_OR_RETURN(CallResults results,
                              PrepareForward(call, std::move(sources), forward->request.micro_batches));
    results.graph = true;
    return results;
  }
  if (const auto* backward = call.As<BackwardCall>()) return PrepareBackward(call, *backward, std::move(sources));
  if (const ContributionCall* contribution = ContributionOf(call.request)) {
    return PrepareContribution(call, *contribution, std::move(sources));
  }
  return CallResults{.outcome = true};
}

absl::Status CallPreparation::PinInputs(Call& call, std::vector<InputSource> inputs, const std::string& field) const {
  PENSTOCK_ASSIGN_OR_RETURN(CallInputs pinned,
                            CallInputs::Make(handles_, call.context.caller, std::move(inputs), field));
  call.inputs.Append(std::move(pinned));
  return absl::OkStatus();
}

int64_t CallPreparation::MicroBatches(std::optional<int> asked) const {
  return asked.value_or(pipeline_->plan().schedule.micro_batches);
}

absl::StatusOr<CallResults> CallPreparation::PrepareForward(Call& call, CallSources sources,
                                                            std::optional<int> micro_batches) const {
  PENSTOCK_RETURN_IF_ERROR(PinInputs(call, std::move(sources.inputs), "inputs"));
  PENSTOCK_RETURN_IF_ERROR(runner_->CheckTensors(call));
  call.queue_weight = MicroBatches(micro_batches);
  return CallResults{.outputs = true, .output_bytes = runner_->ExpectedOutputBytes(call)};
}

absl::StatusOr<CallResults> CallPreparation::PrepareBackward(Call& call, const BackwardCall& backward,
                                                             CallSources sources) const {
  absl::StatusOr<HandlePin> graph = handles_->Pin(call.context.caller, backward.graph);
  if (!graph.ok()) return WithValue(graph.status(), "field", "graph");
  if (graph->kind() != HandleKind::kGraph) return WithValue(graph->graph().status(), "field", "graph");
  if (backward.graph.pipeline != name_) {
    return InvalidField("graph", "must be a graph of pipeline " + name_, ToString(backward.graph));
  }
  // One that was consumed or is stale is refused at once.
  if (graph->settled()) PENSTOCK_RETURN_IF_ERROR(graph->graph().status());
  PENSTOCK_RETURN_IF_ERROR(PinInputs(call, std::move(sources.inputs), "gradients"));
  if (graph->settled() && call.inputs.ready()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Graph> kept, graph->graph());
    PENSTOCK_ASSIGN_OR_RETURN(const NamedValues values, call.inputs.Take());
    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors tensors, ToTensors(values));
    PENSTOCK_RETURN_IF_ERROR(pipeline_->CheckGradients(*kept, tensors));
  }
  call.graph_pin = call.inputs.AddPin(*std::move(graph));
  return CallResults{.outcome = true, .outputs = backward.input_gradients};
}

absl::StatusOr<CallResults> CallPreparation::PrepareContribution(Call& call, const ContributionCall& contribution,
                                                                 CallSources sources) const {
  PENSTOCK_RETURN_IF_ERROR(PinInputs(call, std::move(sources.inputs), "inputs"));
  if (sources.target.has_value()) PENSTOCK_RETURN_IF_ERROR(PinInputs(call, {*std::move(sources.target)}, "target"));
  if (sources.weights.has_value()) PENSTOCK_RETURN_IF_ERROR(PinInputs(call, {*std::move(sources.weights)}, "weights"));
  PENSTOCK_RETURN_IF_ERROR(runner_->CheckTensors(call));
  call.queue_weight = MicroBatches(contribution.request.micro_batches);
  const bool keeps = !contribution.request.outputs.empty();
  return CallResults{.outcome = true, .outputs = keeps, .output_bytes = keeps ? runner_->ExpectedOutputBytes(call) : 0};
}

absl::StatusOr<CallInputs> CallPreparation::PinWritten(const std::string& caller, const WriteCall& write) const {
  CallInputs pinned;
  for (const HandleName& handle : write.handles) {
    absl::StatusOr<HandlePin> pin = handles_->Pin(caller, handle);
    const absl::Status refused = !pin.ok() ? pin.status() : pin->tensors().status();
    if (!refused.ok()) return WithValue(refused, "field", "handles");
    pinned.AddPin(*std::move(pin));
  }
  return pinned;
}

}  // namespace penstock
