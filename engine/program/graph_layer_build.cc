#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/program/graph_layer.h"
#include "engine/program/program_archive.h"

// How a part becomes steps over places: values get numbers of their own, and each gets an end.

namespace penstock {

absl::Status GraphLayer::BuildMode(const GraphLayerRequest& request, const GraphLayerMode& source, bool training,
                                   Mode& mode) {
  const ResolvedGraph& graph = *source.graph;
  const GraphPart& part = *source.part;
  mode.train_literals = source.train_literals;
  std::vector<ProgramValueIndex> places(graph.graph->values.size(), kNoValue);
  std::vector<ProgramValueIndex> placed;
  const auto place = [&](ProgramValueIndex value) {
    if (places[value] == kNoValue) {
      places[value] = mode.places++;
      placed.push_back(value);
    }
    return places[value];
  };
  for (const ProgramValueIndex value : part.arrivals) mode.arrivals.push_back(place(value));
  for (const auto& [name, value] : part.pops) mode.pops[name] = place(value);
  for (const ProgramValueIndex value : part.copied) mode.copied.push_back(place(value));
  for (int c = part.first; c < part.end; ++c) {
    if (graph.CountsBatches(c)) continue;
    for (const ProgramValueIndex value : graph.calls[c].inputs()) place(value);
    for (const ProgramValueIndex value : graph.calls[c].outputs()) place(value);
  }
  for (const ProgramValueIndex value : part.leaves) mode.leaves.push_back(place(value));
  for (const auto& [name, value] : part.stashes) mode.stashes[name] = place(value);
  for (const auto& [name, position] : part.given) {
    mode.given.emplace_back(mode.stashes.at(name), graph.graph->outputs[position]);
  }
  for (const auto& [name, position] : part.handed_outputs) mode.handed_outputs.insert(position);
  if (request.last) {
    mode.outputs = graph.graph->outputs;
    for (const ProgramOutput& output : graph.graph->outputs) {
      mode.leaves.push_back(output.item.is_value() ? place(graph.numbers[output.item.value]) : kNoValue);
      if (!output.item.is_value()) mode.fixed_leaves.push_back(output.item.literal);
    }
  }
  const std::set<ProgramValueIndex> arrived(part.arrivals.begin(), part.arrivals.end());
  std::set<ProgramValueIndex> popped;
  for (const auto& [name, value] : part.pops) popped.insert(value);
  for (const ProgramValueIndex value : placed) {
    if (const auto constant = graph.graph->constants.find(value); constant != graph.graph->constants.end()) {
      mode.constants.emplace_back(places[value], constant->second);
    }
    const int tensor = graph.TensorOf(value);
    if (tensor < 0 || arrived.count(value) != 0 || popped.count(value) != 0) continue;
    const auto position = positions_.find(tensor);
    PENSTOCK_CHECK(position != positions_.end());
    const bool changed = graph.changes.count(graph.classes[value]) != 0;
    (changed ? mode.states : mode.tensors).emplace_back(places[value], position->second);
  }
  PENSTOCK_RETURN_IF_ERROR(AddSteps(request, source, training, places, mode));
  if (training) PENSTOCK_RETURN_IF_ERROR(FindStateSteps(source, places, mode));
  FindEnds(mode);
  return absl::OkStatus();
}

absl::Status GraphLayer::AddSteps(const GraphLayerRequest& request, const GraphLayerMode& source, bool training,
                                  const std::vector<ProgramValueIndex>& places, Mode& mode) {
  const ResolvedGraph& graph = *source.graph;
  for (int c = source.part->first; c < source.part->end; ++c) {
    if (graph.CountsBatches(c)) continue;
    const ProgramNode& node = graph.graph->nodes[c];
    Step step{.call = graph.calls[c],
              .node = absl::StrCat(node.name, " (", node.target, ")"),
              .gradients = node.gradients,
              .autocast = node.autocast};
    if (training && step.call.kind() == OperatorKind::kBatchNorm) {
      PENSTOCK_ASSIGN_OR_RETURN(step.batch_norm, MakeBatchNorm(request, graph, step.call));
    }
    step.call.Renumber(places);
    mode.steps.push_back(std::move(step));
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchNorm*> GraphLayer::MakeBatchNorm(const GraphLayerRequest& request, const ResolvedGraph& graph,
                                                     const OperatorCall& call) {
  const OperatorCall::BatchNormArguments arguments = call.batch_norm_arguments();
  if (arguments.running_mean == kNoValue || arguments.running_var == kNoValue) return nullptr;
  const auto tensor_of = [&](ProgramValueIndex value) {
    if (value == kNoValue) return at::Tensor();
    const auto position = positions_.find(graph.TensorOf(value));
    return position == positions_.end() ? at::Tensor() : tensors_[position->second];
  };
  BatchNorm::Tensors tensors{.weight = tensor_of(arguments.weight),
                             .bias = tensor_of(arguments.bias),
                             .running_mean = tensor_of(arguments.running_mean),
                             .running_var = tensor_of(arguments.running_var),
                             .num_batches_tracked = {}};
  const bool weights = (arguments.weight == kNoValue || tensors.weight.defined()) &&
                       (arguments.bias == kNoValue || tensors.bias.defined());
  if (!weights || !tensors.running_mean.defined() || !tensors.running_var.defined()) {
    return ProgramError("batch norm", "must use tensors of the file", graph.graph->values[arguments.running_mean]);
  }
  const int counter = CounterBeside(*request.program, graph.TensorOf(arguments.running_mean));
  const auto position = positions_.find(counter);
  tensors.num_batches_tracked = position == positions_.end() ? at::zeros({}, at::kLong) : tensors_[position->second];
  batch_norms_.push_back(std::make_unique<BatchNorm>(BatchNormOptions{.features = tensors.running_mean.numel(),
                                                                      .eps = arguments.eps,
                                                                      .momentum = arguments.momentum,
                                                                      .affine = tensors.weight.defined(),
                                                                      .track = true},
                                                     request.deferred_batch_norm, std::move(tensors)));
  return batch_norms_.back().get();
}

// The steps that make the new content of changed buffers, and what else they need: found backwards from the changes,
// along what depends on the buffers.
absl::Status GraphLayer::FindStateSteps(const GraphLayerMode& source, const std::vector<ProgramValueIndex>& places,
                                        Mode& mode) {
  if (mode.states.empty()) return absl::OkStatus();
  std::vector<ProgramValueIndex> class_of(static_cast<size_t>(mode.places), kNoValue);
  for (size_t value = 0; value < places.size(); ++value) {
    if (places[value] != kNoValue) class_of[places[value]] = source.graph->classes[value];
  }
  std::set<ProgramValueIndex> state_classes;
  for (const auto& [place, tensor] : mode.states) state_classes.insert(class_of[place]);
  std::vector<bool> depends(static_cast<size_t>(mode.places), false);  // now: on the buffers
  for (const auto& [place, tensor] : mode.states) depends[place] = true;
  std::set<Place> held;
  for (const auto& [place, tensor] : mode.tensors) held.insert(place);
  for (const auto& [place, constant] : mode.constants) held.insert(place);
  std::vector<bool> of_state(mode.steps.size(), false);
  std::vector<std::vector<Place>> of_pass(mode.steps.size());  // what each step takes that does not depend
  std::map<ProgramValueIndex, int> first_mixed;  // by class: the first step that changes it by what depends
  std::map<ProgramValueIndex, int> last_change;  // by class
  for (size_t s = 0; s < mode.steps.size(); ++s) {
    const OperatorCall& call = mode.steps[s].call;
    for (const Place place : call.inputs()) {
      if (depends[place]) {
        of_state[s] = true;
      } else if (held.count(place) == 0) {
        of_pass[s].push_back(place);
      }
    }
    for (const Place place : call.outputs()) depends[place] = depends[place] || of_state[s];
    if (call.changes() == kNoValue) continue;
    last_change[class_of[call.changes()]] = static_cast<int>(s);
    if (of_state[s]) first_mixed.emplace(class_of[call.changes()], static_cast<int>(s));
  }
  std::set<Place> needed;
  std::set<ProgramValueIndex> needed_classes;
  for (size_t s = mode.steps.size(); s-- > 0;) {
    Step& step = mode.steps[s];
    const OperatorCall& call = step.call;
    const ProgramValueIndex changed = call.changes() == kNoValue ? kNoValue : class_of[call.changes()];
    const bool changes = changed != kNoValue && state_classes.count(changed) != 0;
    const bool gives = of_state[s] && (needed_classes.count(changed) != 0 ||
                                       std::any_of(call.outputs().begin(), call.outputs().end(),
                                                   [&](Place place) { return needed.count(place) != 0; }));
    if (!changes && !gives) continue;
    if (call.random() || step.batch_norm != nullptr) {
      return ProgramError("node " + step.node, "must not decide what becomes of a buffer", "random numbers");
    }
    mode.state_steps.insert(mode.state_steps.begin(), static_cast<int>(s));
    for (const Place place : call.inputs()) {
      needed.insert(place);
      needed_classes.insert(class_of[place]);
    }
    for (const Place place : of_pass[s]) {
      const auto mixed = first_mixed.find(class_of[place]);
      if (mixed != first_mixed.end() && mixed->second < static_cast<int>(s)) {
        return ProgramError("node " + step.node, "must not read an older view of what a buffer has changed",
                            source.graph->graph->values[class_of[place]]);
      }
      const auto change = last_change.find(class_of[place]);
      step.noted.emplace_back(place, change != last_change.end() && change->second >= static_cast<int>(s));
    }
  }
  return absl::OkStatus();
}

void GraphLayer::FindEnds(Mode& mode) {
  std::set<Place> kept(mode.leaves.begin(), mode.leaves.end());
  for (const auto& [name, place] : mode.stashes) kept.insert(place);
  std::set<Place> seen = kept;
  for (size_t s = mode.steps.size(); s-- > 0;) {
    Step& step = mode.steps[s];
    for (const std::vector<ProgramValueIndex>* places : {&step.call.inputs(), &step.call.outputs()}) {
      for (const Place place : *places) {
        if (seen.insert(place).second) step.ends.push_back(place);
      }
    }
  }
}

}  // namespace penstock
