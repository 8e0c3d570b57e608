#include "engine/exec/stage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/autograd/autocast.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"
#include "engine/exec/in_place_guard.h"
#include "engine/model/run_layer.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {
namespace {

std::optional<at::ScalarType> AutocastType(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return std::nullopt;
}

// The same tensors as leaves of a graph.
Batch Leaves(const Batch& batch, bool with_gradient) {
  return batch.MapTensors([with_gradient](const at::Tensor& tensor) {
    at::Tensor leaf = tensor.detach();
    if (with_gradient && (leaf.is_floating_point() || leaf.is_complex())) leaf.requires_grad_(true);
    return leaf;
  });
}

// Ends of the graph that a gradient has reached. Gradients have the form of the ends, with None where there is none.
void AddRoots(const ValueList& ends, const ValueList& gradients, std::vector<at::Tensor>& roots,
              std::vector<at::Tensor>& root_gradients) {
  for (size_t i = 0; i < ends.size() && i < gradients.size(); ++i) {
    if (!ends[i].is_tensor()) {
      AddRoots(ends[i].Items(), gradients[i].Items(), roots, root_gradients);
    } else if (gradients[i].is_tensor() && ends[i].tensor()->requires_grad()) {
      roots.push_back(*ends[i].tensor());
      root_gradients.push_back(*gradients[i].tensor());
    }
  }
}

void ResetGradients(const Batch& leaves) {
  for (const at::Tensor& leaf : leaves.AllTensors()) leaf.mutable_grad().reset();
}

// Takes them out of the leaves, which saved tensors may keep. In the form of the leaves, with None where there is none.
Batch TakeGradients(const Batch& leaves) {
  ValueList gradients;
  for (const Value& value : leaves) {
    gradients.push_back(!value.HoldsTensor() ? Value() : value.Map([](const Value& leaf) {
      if (!leaf.is_tensor()) return Value();
      at::Tensor gradient = std::exchange(leaf.tensor()->mutable_grad(), at::Tensor());
      return gradient.defined() ? Value(std::move(gradient)) : Value();
    }));
  }
  return Batch::Tuple(std::move(gradients));
}

// The backward of a graph that layers have built: what it throws is theirs.
void RunBackward(const std::function<void()>& body) {
  if (absl::Status ran = RunLayerCode(body); !ran.ok()) ThrowStatus(std::move(ran));
}

InputGradients TakeGradients(const Pass& pass) {
  InputGradients result{.inputs = TakeGradients(pass.leaves), .skips = {}};
  for (const Batch& leaves : pass.skip_leaves) result.skips.push_back(TakeGradients(leaves));
  return result;
}

}  // namespace

NamedTensors ParametersOf(const std::vector<NamedLayer>& layers) {
  NamedTensors parameters;
  for (const NamedLayer& layer : layers) {
    for (const NamedTensor& parameter : layer.layer->parameters()) {
      parameters.push_back({layer.TensorName(parameter.name), parameter.tensor});
    }
  }
  return parameters;
}

void Pass::DropGraph() {
  leaves = Batch();
  skip_leaves.clear();
  outputs = Batch();
  skip_outputs.clear();
  loss.reset();
  graph = false;
}

Stage::Stage(Parts parts, NamedTensors parameters) : parts_(std::move(parts)), parameters_(std::move(parameters)) {}

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(Parts parts, const OptimizerSpec& optimizer) {
  NamedTensors parameters = ParametersOf(parts.layers);
  std::vector<bool> stepped(parameters.size(), true);
  for (const StageTie& tie : parts.ties) {
    for (size_t u = 1; u < tie.uses.size(); ++u) stepped[tie.uses[u].parameter] = false;
  }
  const std::vector<std::string> names = SavedNames(parts, parameters);
  RuleTensors own;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (stepped[i]) own.parameters.push_back({names[i], parameters[i].tensor});
  }
  std::unique_ptr<Stage> stage(new Stage(std::move(parts), std::move(parameters)));
  PENSTOCK_ASSIGN_OR_RETURN(stage->optimizer_, MakeOptimizer(optimizer, std::move(own)));
  return stage;
}

std::vector<std::string> Stage::SavedNames(const Parts& parts, const NamedTensors& parameters) {
  std::vector<std::string> names;
  for (const NamedTensor& parameter : parameters) names.push_back(parameter.name);
  for (const StageTie& tie : parts.ties) {
    for (const StageTie::Use& use : tie.uses) names[use.parameter] = tie.name;
  }
  return names;
}

void Stage::RunLayers(Pass& pass, const Batch& inputs, const std::vector<Batch>& skips, const PassContext& context,
                      const LossContext& loss) {
  InPlaceGuard given;
  given.Note(inputs);
  SkipTracker tracker;
  for (size_t port = 0; port < parts_.incoming.size(); ++port) {
    given.Note(skips[port]);
    const std::vector<SkipName>& names = parts_.incoming[port].names;
    for (size_t i = 0; i < names.size(); ++i) tracker.Put(names[i], skips[port][i]);
  }
  const AutocastGuard precision(TorchDevice(parts_.device).type(), AutocastType(parts_.autocast));
  Batch values = inputs;
  for (size_t i = 0; i < parts_.layers.size(); ++i) {
    KeyedRandom random(context.seed, context.step, context.micro_batch,
                       LayerIndex(parts_.first_layer.value() + static_cast<int>(i)));
    const LayerContext of_layer = {.training = context.training,
                                   .recomputing = context.recomputing,
                                   .values_checked = i == 0 && context.values_checked,
                                   .random = &random,
                                   .micro_batch = context.micro_batch};
    const absl::Status ran = RunLayerCode([&] { values = RunLayer(parts_.layers[i], values, of_layer, tracker); });
    if (!ran.ok()) given.ThrowFailure(parts_.layers[i].name, ran);
    given.CheckUnchanged(parts_.layers[i].name);
  }
  const bool leave_before = std::any_of(parts_.incoming.begin(), parts_.incoming.end(),
                                        [](const SkipPort& port) { return !port.outputs.empty(); });
  if (!values.HasTensor() && !leave_before) {
    const bool list = values.spread();
    ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                      absl::StrCat(list ? "Only Tensor or Tuple of Tensor output is supported. " : "",
                                   "No tensors found in batch: ", TypesText(values)))
                    .With("field", parts_.layers.back().name)
                    .With("value", TypesText(values)));
  }
  pass.skip_outputs.clear();
  for (const SkipPort& port : parts_.outgoing) {
    std::vector<Value> stashed;
    for (const SkipName& name : port.names) stashed.push_back(tracker.Take(name).value_or(Value()));
    pass.skip_outputs.push_back(Batch::Tuple(std::move(stashed)));
  }
  if (parts_.last && loss.loss != nullptr) {
    const auto placed = [this](const at::Tensor& tensor) {
      return LossTensor(tensor, SendToDevice(tensor, StreamsOf(parts_.device)));
    };
    const at::Tensor mean = loss.loss->Mean(values.TensorAt(loss.output), placed(loss.target), placed(loss.weights));
    pass.loss = at::mul(mean, loss.share);
  }
  pass.outputs = std::move(values);
}

void Stage::CheckValues(const Batch& inputs) const {
  const NamedLayer& layer = parts_.layers.front();
  const absl::Status checked = RunLayerCode([&] { layer.layer->CheckValues(inputs.Folded()); });
  if (!checked.ok()) InPlaceGuard().ThrowFailure(layer.name, checked);
}

void Stage::Forward(Batch inputs, PassContext context, const LossContext& loss, Pass& pass) {
  DeviceStreams& streams = StreamsOf(parts_.device);
  const Tensors given = inputs.AllTensors();
  const auto of_host = [](const at::Tensor& tensor) { return tensor.is_cpu(); };
  context.values_checked =
      !streams.device().is_cpu() && !given.empty() && std::all_of(given.begin(), given.end(), of_host);
  if (context.values_checked) CheckValues(inputs);
  pass.stash = inputs.MapTensors([&](const at::Tensor& tensor) {
    if (tensor.is_meta()) return tensor;  // goes straight to another stage
    at::Tensor here = SendToDevice(tensor, streams);
    return parts_.copies_inputs && here.is_same(tensor) ? tensor.clone() : here;
  });
  if (context.graph) {
    Recompute(context, loss, pass);
    return;
  }
  at::NoGradGuard no_graph;
  std::vector<Batch> skips;
  for (Portal& portal : pass.received) skips.push_back(portal.Use());
  RunLayers(pass, pass.stash, skips, context, loss);
}

void Stage::Recompute(const PassContext& context, const LossContext& loss, Pass& pass) {
  if (pass.graph) return;
  at::AutoGradMode with_graph(true);
  // The model's inputs come from the client, who seldom asks for their gradients.
  pass.leaves = Leaves(pass.stash, !first() || context.input_gradients);
  pass.skip_leaves.clear();
  for (size_t port = 0; port < pass.received.size(); ++port) {
    const Batch& received = pass.received[port].Look();
    Batch& leaves = pass.skip_leaves.emplace_back(Leaves(received, true));
    for (const StraightValue& input : parts_.incoming[port].inputs) {
      leaves.Set(input.item, Leaves(received[input.item], context.input_gradients)[0]).IgnoreError();
    }
  }
  RunLayers(pass, pass.leaves, pass.skip_leaves, context, loss);
  for (Portal& portal : pass.received) (void)portal.Use();  // a recomputation that fails may be tried again
  pass.graph = true;
}

Stage::Roots Stage::RootsOf(Pass& pass, const Batch& gradients) const {
  ResetGradients(pass.leaves);
  for (const Batch& leaves : pass.skip_leaves) ResetGradients(leaves);
  Roots roots;
  if (pass.loss.defined()) {
    if (pass.loss.requires_grad()) {
      roots.tensors.push_back(pass.loss);
      roots.gradients.emplace_back();
    }
  } else {
    const auto here = [this](const at::Tensor& tensor) { return SendToDevice(tensor, StreamsOf(parts_.device)); };
    AddRoots(pass.outputs.values(), gradients.MapTensors(here).values(), roots.tensors, roots.gradients);
  }
  for (size_t port = 0; port < pass.skip_outputs.size(); ++port) {
    AddRoots(pass.skip_outputs[port].values(), pass.sent.at(port).TakeGradient().values(), roots.tensors,
             roots.gradients);
  }
  return roots;
}

InputGradients Stage::Backward(Pass& pass, const Batch& gradients, bool retain_graph) {
  const Roots roots = RootsOf(pass, gradients);
  if (!roots.tensors.empty()) {
    RunBackward([&] { torch::autograd::backward(roots.tensors, roots.gradients, retain_graph); });
  }
  OwnGradients();
  AddEarlierGradients();
  InputGradients result = TakeGradients(pass);
  if (!retain_graph) pass = Pass();
  return result;
}

InputGradients Stage::InputGradient(Pass& pass, const Batch& gradients) {
  const Roots roots = RootsOf(pass, gradients);
  Tensors inputs = pass.leaves.AllTensors();
  for (const Batch& leaves : pass.skip_leaves) {
    for (const at::Tensor& leaf : leaves.AllTensors()) inputs.push_back(leaf);
  }
  std::unique_ptr<SplitBackward> owed;
  RunBackward([&] { owed = SplitBackward::InputHalf(roots.tensors, roots.gradients, inputs); });
  InputGradients result = TakeGradients(pass);
  pass = Pass();
  pass.split = std::move(owed);
  return result;
}

void Stage::WeightGradient(Pass& pass) {
  PENSTOCK_CHECK(pass.split != nullptr);
  RunBackward([&] { pass.split->WeightHalf(); });
  OwnGradients();
  AddEarlierGradients();
  pass = Pass();
}

}  // namespace penstock
