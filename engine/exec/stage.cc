#include "engine/exec/stage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/autograd/autocast.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"
#include "engine/model/run_layer.h"
#include "engine/optim/gradient_norm.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {
namespace {

// What a stage was given, and how often each tensor had been changed by then.
class GivenTensors {
 public:
  void Note(const Batch& batch) {
    for (const Value& value : batch) {
      if (const at::Tensor* tensor = value.any_tensor()) given_.emplace_back(*tensor, tensor->_version());
    }
  }

  // Throws if the layer that just ran has changed one of them.
  void CheckUnchanged(const std::string& layer) const {
    for (const auto& [tensor, version] : given_) {
      if (static_cast<int64_t>(tensor._version()) != version) ThrowChanged(layer, "");
    }
  }

  // Throws what a layer has failed with, and its name where it did not expect to fail; its own errors say what they must.
  // LibTorch itself forbids changing what asks for a gradient.
  [[noreturn]] void ThrowFailure(const std::string& layer, const absl::Status& status) const {
    const bool learns =
        std::any_of(given_.begin(), given_.end(), [](const auto& one) { return one.first.requires_grad(); });
    if (learns && ReasonOf(status) == "WRONG_TYPE" && absl::StrContains(status.message(), "in-place operation")) {
      ThrowChanged(layer, absl::StrCat(": ", std::string(status.message())));
    }
    ThrowStatus(absl::IsInternal(status) ? WithPrefix(status, absl::StrCat("layer ", layer, ": ")) : status);
  }

 private:
  [[noreturn]] static void ThrowChanged(const std::string& layer, const std::string& detail) {
    ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                      absl::StrCat("layer ", layer,
                                   " has changed an input of its stage in place; a recomputation would start from "
                                   "something else",
                                   detail))
                    .With("field", layer)
                    .With("value", "an in-place operation"));
  }

  std::vector<std::pair<at::Tensor, int64_t>> given_;
};

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

// Ends of the graph that a gradient has reached.
void AddRoots(const Batch& ends, const Batch& gradients, std::vector<at::Tensor>& roots,
              std::vector<at::Tensor>& root_gradients) {
  for (size_t i = 0; i < ends.size() && i < gradients.size(); ++i) {
    if (!ends[i].is_tensor() || !gradients[i].is_tensor() || !ends[i].tensor()->requires_grad()) continue;
    roots.push_back(*ends[i].tensor());
    root_gradients.push_back(*gradients[i].tensor());
  }
}

void ResetGradients(const Batch& leaves) {
  for (const Value& value : leaves) {
    if (value.is_tensor()) value.tensor()->mutable_grad().reset();
  }
}

// Takes them out of the leaves, which saved tensors may keep.
Batch TakeGradients(const Batch& leaves) {
  Tensors gradients;
  for (const Value& value : leaves) {
    gradients.push_back(value.is_tensor() ? std::exchange(value.tensor()->mutable_grad(), at::Tensor()) : at::Tensor());
  }
  return Batch::OfTensors(gradients);
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
  NamedTensors own;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (stepped[i]) own.push_back(parameters[i]);
  }
  std::unique_ptr<Stage> stage(new Stage(std::move(parts), std::move(parameters)));
  PENSTOCK_ASSIGN_OR_RETURN(stage->optimizer_, MakeOptimizer(optimizer, std::move(own)));
  return stage;
}

void Stage::RunLayers(Pass& pass, const Batch& inputs, const std::vector<Batch>& skips, const PassContext& context,
                      const LossContext& loss) {
  GivenTensors given;
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
                                   .random = &random,
                                   .micro_batch = context.micro_batch};
    const absl::Status ran = RunTorch([&] { values = RunLayer(parts_.layers[i], values, of_layer, tracker); });
    if (!ran.ok()) given.ThrowFailure(parts_.layers[i].name, ran);
    given.CheckUnchanged(parts_.layers[i].name);
  }
  if (!values.HasTensor()) {
    const bool list = values.atomic() && values[0].list() != nullptr;
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
    const at::Tensor target = loss.target.defined() ? ToDevice(loss.target, parts_.device) : at::Tensor();
    pass.loss = at::mul(loss.loss->Mean(values.TensorAt(loss.output), target), loss.share);
  }
  pass.outputs = std::move(values);
}

void Stage::Forward(Batch inputs, const PassContext& context, const LossContext& loss, Pass& pass) {
  pass.stash = inputs.MapTensors([this](const at::Tensor& tensor) { return ToDevice(tensor, parts_.device); });
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
  // The first stage's inputs come from the client, who seldom asks for their gradients.
  pass.leaves = Leaves(pass.stash, !first() || context.input_gradients);
  pass.skip_leaves.clear();
  for (Portal& portal : pass.received) pass.skip_leaves.push_back(Leaves(portal.Use(), true));
  RunLayers(pass, pass.leaves, pass.skip_leaves, context, loss);
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
    const auto here = [this](const at::Tensor& tensor) { return ToDevice(tensor, parts_.device); };
    AddRoots(pass.outputs, gradients.MapTensors(here), roots.tensors, roots.gradients);
  }
  for (size_t port = 0; port < pass.skip_outputs.size(); ++port) {
    AddRoots(pass.skip_outputs[port], pass.sent.at(port).TakeGradient(), roots.tensors, roots.gradients);
  }
  return roots;
}

InputGradients Stage::Backward(Pass& pass, const Batch& gradients, bool retain_graph) {
  const Roots roots = RootsOf(pass, gradients);
  if (!roots.tensors.empty()) torch::autograd::backward(roots.tensors, roots.gradients, retain_graph);
  OwnGradients();
  AddEarlierGradients();
  InputGradients result = TakeGradients(pass);
  if (!retain_graph) pass = Pass();
  return result;
}

InputGradients Stage::InputGradient(Pass& pass, const Batch& gradients) {
  const Roots roots = RootsOf(pass, gradients);
  Tensors inputs;
  const auto add = [&inputs](const Batch& leaves) {
    for (const Value& value : leaves) {
      if (value.is_tensor()) inputs.push_back(*value.tensor());
    }
  };
  add(pass.leaves);
  for (const Batch& leaves : pass.skip_leaves) add(leaves);
  std::unique_ptr<SplitBackward> owed = SplitBackward::InputHalf(roots.tensors, roots.gradients, inputs);
  InputGradients result = TakeGradients(pass);
  pass = Pass();
  pass.split = std::move(owed);
  return result;
}

void Stage::WeightGradient(Pass& pass) {
  PENSTOCK_CHECK(pass.split != nullptr);
  pass.split->WeightHalf();
  OwnGradients();
  AddEarlierGradients();
  pass = Pass();
}

void Stage::BeginContribution(bool accumulating) {
  if (contributing_) return;
  contributing_ = true;
  earlier_.assign(parameters_.size(), at::Tensor());
  added_.assign(parameters_.size(), false);
  if (!accumulating) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    earlier_[i] = std::exchange(parameters_[i].tensor.mutable_grad(), at::Tensor());
  }
}

// LibTorch lets a parameter take a gradient that is a view, and another one, of an input say, be a view of the same elements.
// What is added to the one in place would change the other.
void Stage::OwnGradients() {
  for (NamedTensor& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined()) gradient = OwnElements(gradient);
  }
}

// The same bits as if the backward had added to them: of two numbers the order does not matter.
void Stage::AddEarlierGradients() {
  const at::NoGradGuard no_graph;
  for (size_t i = 0; i < earlier_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (added_[i] || !earlier_[i].defined() || !gradient.defined()) continue;
    gradient.add_(earlier_[i]);
    added_[i] = true;
  }
}

void Stage::EndContribution(bool keep, MicroBatchIndex first) {
  for (size_t i = 0; i < earlier_.size(); ++i) {
    const bool reached = added_[i] || !earlier_[i].defined();
    if (!keep || !reached) parameters_[i].tensor.mutable_grad() = earlier_[i];
  }
  if (!keep) DiscardStatistics(first);
  contributing_ = false;
  earlier_.clear();
}

void Stage::ClearGradients() {
  for (NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  summed_ties_ = false;
}

void Stage::CommitStatistics() {
  for (const NamedLayer& layer : parts_.layers) layer.layer->CommitStatistics();
}

void Stage::DiscardStatistics(MicroBatchIndex first) {
  for (const NamedLayer& layer : parts_.layers) layer.layer->DiscardStatistics(first);
}

void Stage::ShareTiedGradients(TiedGradients& board) const {
  for (const StageTie& tie : parts_.ties) {
    for (const StageTie::Use& use : tie.uses) {
      board.at(tie.group).at(use.position) = parameters_[use.parameter].tensor.grad();
    }
  }
}

std::vector<at::Tensor> Stage::SumTiedGradients(const TiedGradients& board) {
  const at::NoGradGuard no_graph;
  summed_ties_ = true;
  for (const StageTie& tie : parts_.ties) {
    at::Tensor sum;
    for (const at::Tensor& gradient : board.at(tie.group)) {
      if (!gradient.defined()) continue;
      const at::Tensor here = ToDevice(gradient, parts_.device);  // another stage's may stand elsewhere
      if (sum.defined()) {
        sum.add_(here);
      } else {
        sum = here.clone();
      }
    }
    for (size_t u = 0; u < tie.uses.size(); ++u) {
      parameters_[tie.uses[u].parameter].tensor.mutable_grad() = u == 0 ? sum : at::Tensor();
    }
  }
  return GradientNorms(LearnedParameters());
}

void Stage::RestoreTiedGradients(const TiedGradients& board) {
  if (!std::exchange(summed_ties_, false)) return;
  for (const StageTie& tie : parts_.ties) {
    for (const StageTie::Use& use : tie.uses) {
      parameters_[use.parameter].tensor.mutable_grad() = board.at(tie.group).at(use.position);
    }
  }
}

void Stage::Keep(const at::Tensor& tensor, bool always) {
  Copy& copy = copies_[tensor.unsafeGetTensorImpl()];
  if (!copy.before.defined()) {
    copy.before = at::empty_like(tensor, at::TensorOptions().requires_grad(false));
    copy.tensor = tensor;
  }
  if (always || copy.version != static_cast<int64_t>(tensor._version())) copy.before.copy_(tensor);
  copy.version = static_cast<int64_t>(tensor._version());
  copy.kept = true;
}

void Stage::KeepForUndo() {
  if (!parts_.undo) return;
  const at::NoGradGuard no_graph;
  for (auto& [key, copy] : copies_) copy.kept = false;
  // Fused steps need not count as changes.
  for (const at::Tensor& tensor : optimizer_->Changing()) Keep(tensor, /*always=*/true);
  for (const NamedLayer& layer : parts_.layers) {
    for (const NamedTensor& buffer : layer.layer->buffers()) Keep(buffer.tensor, /*always=*/false);
  }
}

void Stage::Step(double learning_rate, double scale) {
  parts_.undo ? optimizer_->StepKeepingGradients(learning_rate, scale) : optimizer_->Step(learning_rate, scale);
}

void Stage::Undo() {
  const at::NoGradGuard no_graph;
  for (auto& [key, copy] : copies_) {
    if (copy.kept) copy.tensor.copy_(copy.before);
  }
}

std::vector<bool> Stage::IsLearnedHere() const {
  std::vector<bool> learned(parameters_.size(), true);
  for (const StageTie& tie : parts_.ties) {
    for (size_t u = 0; u < tie.uses.size(); ++u) learned[tie.uses[u].parameter] = u == 0 && tie.owner;
  }
  return learned;
}

NamedTensors Stage::LearnedParameters() const {
  const std::vector<bool> learned = IsLearnedHere();
  NamedTensors parameters;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (learned[i]) parameters.push_back(parameters_[i]);
  }
  return parameters;
}

NamedTensors Stage::SavedTensors() const {
  const std::vector<bool> saved = IsLearnedHere();
  NamedTensors tensors;
  size_t next = 0;
  for (const NamedLayer& layer : parts_.layers) {
    for (size_t i = 0; i < layer.layer->parameters().size(); ++i, ++next) {
      if (saved[next]) tensors.push_back({parameters_[next].name, parameters_[next].tensor.detach()});
    }
    for (const NamedTensor& buffer : layer.layer->buffers()) {
      tensors.push_back({layer.TensorName(buffer.name), buffer.tensor});
    }
  }
  return tensors;
}

StageBytesHeld Stage::BytesHeld() const {
  StageBytesHeld bytes;
  std::set<const void*> seen;
  for (const NamedTensor& parameter : parameters_) {
    if (seen.insert(parameter.tensor.data_ptr()).second) bytes.weights += ByteSize(parameter.tensor);
  }
  for (const NamedLayer& layer : parts_.layers) bytes.buffers += ByteSize(layer.layer->buffers());
  bytes.optimizer = ByteSize(optimizer_->State());
  return bytes;
}

int64_t Stage::GradientBytes() const {
  int64_t bytes = 0;
  for (const NamedTensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) bytes += ByteSize(gradient);
  }
  return bytes + ByteSize(earlier_);
}

int64_t Stage::UndoBytes() const {
  int64_t bytes = 0;
  for (const auto& [key, copy] : copies_) bytes += ByteSize(copy.before);
  return bytes;
}

NamedTensors Stage::Replicas() const {
  NamedTensors tensors;
  for (const StageTie& tie : parts_.ties) {
    if (!tie.owner) tensors.push_back({tie.name, parameters_[tie.uses[0].parameter].tensor.detach()});
  }
  return tensors;
}

// The optimizer names its slots parameter/slot; a replica's slots are those of the parameter that is saved.
NamedTensors Stage::SavedOptimizerState() const {
  NamedTensors slots = optimizer_->State();
  for (const StageTie& tie : parts_.ties) {
    if (tie.owner) continue;
    const std::string prefix = parameters_[tie.uses[0].parameter].name + "/";
    slots.erase(
        std::remove_if(slots.begin(), slots.end(),
                       [&](const NamedTensor& slot) { return slot.name.compare(0, prefix.size(), prefix) == 0; }),
        slots.end());
  }
  return slots;
}

NamedTensors Stage::OptimizerReplicas() const {
  NamedTensors replicas;
  for (const NamedTensor& slot : optimizer_->State()) {
    for (const StageTie& tie : parts_.ties) {
      const std::string prefix = parameters_[tie.uses[0].parameter].name + "/";
      if (tie.owner || slot.name.compare(0, prefix.size(), prefix) != 0) continue;
      replicas.push_back({absl::StrCat(tie.name, "/", slot.name.substr(prefix.size())), slot.tensor});
    }
  }
  return replicas;
}

}  // namespace penstock
