// Forward and Backward as calls of their own: between them the client has the outputs, and makes their gradients.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"
#include "engine/exec/pipeline_impl.h"
#include "engine/exec/signature_check.h"
#include "engine/exec/straight_values.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {
namespace {

// The gradients of one input's micro-batches as that of the input: joined, with zeros for a micro-batch that had no
// part in the result; their sum if every micro-batch had all of it. Undefined if there is none. May throw.
at::Tensor JoinGradients(const Graph::Input& input, Tensors pieces) {
  const auto known = std::find_if(pieces.begin(), pieces.end(), [](const at::Tensor& one) { return one.defined(); });
  if (known == pieces.end()) return {};
  if (input.whole) {
    at::Tensor sum = *known;
    for (auto piece = known + 1; piece != pieces.end(); ++piece) {
      if (piece->defined()) sum = sum.add(*piece);
    }
    return OwnElements(sum);
  }
  for (size_t m = 0; m < pieces.size(); ++m) {
    if (pieces[m].defined()) continue;
    std::vector<int64_t> shape = known->sizes().vec();
    shape[0] = input.rows[m];
    pieces[m] = at::zeros(shape, known->options());
  }
  return pieces.size() == 1 ? OwnElements(pieces[0]) : at::cat(pieces, 0);
}

absl::StatusOr<NamedValues> GatherInputGradients(const std::vector<Batch>& by_micro_batch,
                                                 const std::vector<Graph::Input>& inputs) {
  NamedValues gradients;
  gradients.tuple = !by_micro_batch.at(0).atomic();
  const absl::Status status = RunTorch([&] {
    const at::NoGradGuard no_graph;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors pieces;
      for (const Batch& one : by_micro_batch) {
        pieces.push_back(one[i].is_tensor() ? *one[i].tensor() : at::Tensor());
      }
      at::Tensor joined = Unpinned(JoinGradients(inputs[i], std::move(pieces)));
      gradients.push_back({inputs[i].name, joined.defined() ? Value(std::move(joined)) : Value()});
    }
  });
  if (!status.ok()) return status;
  return gradients;
}

// How each input was cut into micro-batches.
std::vector<Graph::Input> InputsOfGraph(const NamedValues& ordered, const std::vector<Batch>& micro_batches) {
  std::vector<Graph::Input> inputs;
  for (size_t i = 0; i < ordered.size(); ++i) {
    inputs.push_back({.name = ordered[i].name, .whole = ordered[i].value.is_whole(), .rows = {}});
    if (!ordered[i].value.is_tensor()) continue;
    for (const Batch& micro_batch : micro_batches) inputs.back().rows.push_back(micro_batch[i].tensor()->size(0));
  }
  return inputs;
}

// What a run that has ended leaves for its Backward. Takes the passes out of the run.
std::shared_ptr<Graph> GraphOf(Run& run, const std::vector<Batch>& outputs, std::vector<Graph::Input> inputs,
                               const std::vector<std::string>& names) {
  auto graph = std::make_shared<Graph>();
  graph->passes = std::move(run.passes);
  graph->run = run.spec.id;
  graph->step = run.spec.step;
  graph->micro_batch_base = run.spec.micro_batch_base;
  graph->micro_batch_rows = run.spec.rows;
  graph->outputs = WithNames(outputs.at(0), names);
  graph->inputs = std::move(inputs);
  graph->input_gradients = run.spec.input_gradients;
  graph->output_rows.resize(graph->outputs.size());
  for (size_t k = 0; k < graph->outputs.size(); ++k) {
    for (const Batch& one : outputs) {
      const at::Tensor* tensor = k < one.size() ? one[k].tensor() : nullptr;
      if (tensor != nullptr && tensor->dim() > 0) graph->output_rows[k].push_back(tensor->size(0));
    }
  }
  return graph;
}

// The gradients of the outputs by micro-batch. May throw (RunTorch).
std::vector<Batch> ScatterGradients(const Graph& graph, const NamedTensors& gradients) {
  const at::NoGradGuard no_graph;
  const size_t m = graph.micro_batch_rows.size();
  std::vector<Tensors> by_micro_batch(m);
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    const std::string& name = graph.outputs[k].name;
    const auto given = std::find_if(gradients.begin(), gradients.end(),
                                    [&](const NamedTensor& gradient) { return gradient.name == name; });
    const bool missing = given == gradients.end();
    const bool scalar = !missing && graph.outputs[k].value.tensor()->dim() == 0;  // [m], one of each micro-batch
    const Tensors pieces = missing  ? Tensors(m)
                           : scalar ? given->tensor.unbind(0)
                                    : SplitRows(given->tensor, graph.output_rows[k]);
    // Copies: a gradient that crosses a cut becomes one, and the last bit of a product may depend on the alignment of
    // memory.
    for (size_t i = 0; i < m; ++i) by_micro_batch[i].push_back(missing ? at::Tensor() : pieces[i].clone());
  }
  std::vector<Batch> scattered;
  for (Tensors& tensors : by_micro_batch) scattered.push_back(Batch::OfTensors(tensors));
  return scattered;
}

}  // namespace

absl::StatusOr<ForwardOutcome> PipelineImpl::Forward(ForwardRequest request) {
  PENSTOCK_RETURN_IF_ERROR(health());
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<int> wanted, MatchNames(signature_.outputs, request.outputs, "outputs"));
  PENSTOCK_ASSIGN_OR_RETURN(const NamedValues ordered, MatchSignature(signature_.inputs, request.inputs, "inputs"));
  PENSTOCK_RETURN_IF_ERROR(CheckHasRows(ordered, request.inputs, "inputs"));
  PENSTOCK_ASSIGN_OR_RETURN(ScatteredBatch scattered, ScatterInputs(ordered, request.micro_batches));
  std::vector<Graph::Input> inputs = InputsOfGraph(ordered, scattered.micro_batches);
  std::vector<std::vector<Batch>> by_stage;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { by_stage = InputsByStage(plan_, std::move(scattered.micro_batches)); }));
  const int m = static_cast<int>(scattered.rows.size());
  PENSTOCK_ASSIGN_OR_RETURN(ListsOfRun lists, rank_.Find(SchedulePurpose::kForwardOnly, m));
  PENSTOCK_ASSIGN_OR_RETURN(const ListsOfRun backward, rank_.Find(SchedulePurpose::kBackwardOnly, m));
  lists.checkpointed = backward.checkpointed;
  RunSpec spec = NewSpec(SchedulePurpose::kForwardOnly, m);
  spec.rows = scattered.rows;
  spec.micro_batch_base = next_micro_batch_;
  spec.training = true;
  spec.keep_graph = true;
  spec.keep_outputs = true;
  spec.input_gradients = request.input_gradients;
  LedRun led = NewRun(std::move(spec), std::move(lists), request.cancel);
  const std::shared_ptr<Run>& run = led.run;
  run->inputs = std::move(by_stage);
  run->results_stay = request.outputs_stay;
  std::shared_ptr<const void> elsewhere = ranks_.KeepGraph(run->spec.id);
  led.open = ranks_.Lead(run, led.leader);
  RunOutcome measured;
  measured.rows = TotalRows(scattered.rows);
  measured.micro_batches = m;
  ForwardOutcome outcome;
  const auto gather = [&]() -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(outcome.outputs, GatherOutputs(*run, wanted));
    return absl::OkStatus();
  };
  absl::Status status = RunToEnd(led, measured);
  if (status.ok()) status = gather();
  if (!status.ok()) {
    ranks_.EndContribution(/*keep=*/false, MicroBatchIndex(run->spec.micro_batch_base));
    return status;
  }
  next_micro_batch_ += m;

  outcome.step = step_.load();
  outcome.graph = GraphOf(*run, JoinOutputs(plan_, run->outputs), std::move(inputs), OutputNames());
  outcome.graph->elsewhere = std::move(elsewhere);
  return outcome;
}

absl::StatusOr<RunOutcome> PipelineImpl::Backward(const std::shared_ptr<Graph>& graph, NamedTensors gradients,
                                                  bool retain_graph) {
  PENSTOCK_RETURN_IF_ERROR(health());
  if (graph->passes.empty()) return NotNow("GRAPH_CONSUMED", "an earlier Backward has used this graph up");
  if (graph->step != StepId(step_.load())) return NotNow("GRAPH_STALE", "the weights have changed since this Forward");
  PENSTOCK_RETURN_IF_ERROR(CheckGradients(*graph, gradients));
  const int m = static_cast<int>(graph->micro_batch_rows.size());
  PENSTOCK_ASSIGN_OR_RETURN(ListsOfRun lists, rank_.Find(SchedulePurpose::kBackwardOnly, m));
  RunSpec spec = NewSpec(SchedulePurpose::kBackwardOnly, m);
  spec.rows = graph->micro_batch_rows;
  spec.micro_batch_base = graph->micro_batch_base;
  spec.training = true;
  spec.graph = graph->run;
  spec.retain_graph = retain_graph;
  spec.keep_graph = retain_graph;
  spec.accumulating = accumulating_.load();
  spec.input_gradients = graph->input_gradients;
  LedRun led = NewRun(std::move(spec), std::move(lists), nullptr);
  const std::shared_ptr<Run>& run = led.run;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    if (!rank_.HasStage(stage_count() - 1)) {  // messages to other ranks begin on the host
      for (NamedTensor& gradient : gradients) gradient.tensor = ToHost(gradient.tensor);
    }
    run->output_gradients = ScatterGradients(*graph, gradients);
  }));
  led.open = ranks_.Lead(run, led.leader);
  run->passes = std::exchange(graph->passes, {});
  RunOutcome outcome;
  outcome.micro_batches = m;
  outcome.rows = TotalRows(graph->micro_batch_rows);
  const auto gather = [&]() -> absl::Status {
    if (!run->spec.input_gradients) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(
        outcome.input_gradients,
        GatherInputGradients(JoinInputGradients(plan_, run->input_gradient_values), graph->inputs));
    return absl::OkStatus();
  };
  absl::Status status = RunToEnd(led, outcome);
  if (retain_graph) graph->passes = std::move(run->passes);
  if (status.ok()) status = gather();
  // What the Forward has noted of the batch stays: only its gradients are undone.
  ranks_.EndContribution(status.ok(), kNoMicroBatch);
  PENSTOCK_RETURN_IF_ERROR(status);
  accumulating_ = true;
  outcome.step = step_.load();
  return outcome;
}

}  // namespace penstock
