#include "tests/support/plain_reference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>
#include <utility>

#include "engine/autograd/autocast.h"
#include "engine/autograd/seeds.h"
#include "engine/model/run_layer.h"
#include "engine/optim/gradient_norm.h"
#include "engine/optim/parameter_groups.h"

namespace penstock::testing {
namespace {

template <typename T>
T Valid(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "plain reference: %s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

// The micro-batches, as LibTorch itself chunks: not by the engine's scatter, which this is to judge.
std::vector<Batch> Chunks(const PlainReference::Inputs& inputs, int m) {
  std::vector<std::vector<Value>> pieces;
  for (const Value& input : inputs) {
    if (!input.is_tensor()) continue;
    if (pieces.empty()) pieces.resize(input.tensor()->chunk(m).size());
  }
  for (const Value& input : inputs) {
    const std::vector<at::Tensor> chunks = input.is_tensor() ? input.tensor()->chunk(m) : std::vector<at::Tensor>();
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].push_back(input.is_tensor() ? Value(chunks.at(i)) : input.is_whole() ? Value(*input.whole()) : input);
    }
  }
  std::vector<Batch> batches;
  for (std::vector<Value>& piece : pieces) {
    batches.push_back(piece.size() == 1 ? Batch(piece[0]) : Batch::Tuple(std::move(piece)));
  }
  return batches;
}

std::optional<at::ScalarType> TypeOf(const std::string& name) {
  if (name.empty()) return std::nullopt;
  return name == "bf16" ? at::kBFloat16 : at::kHalf;
}

}  // namespace

PlainReference::PlainReference(const PlainSpec& spec)
    : optimizer_spec_(spec.optimizer),
      seed_(spec.seed),
      device_(spec.device),
      layers_(Valid(BuildLayers(Valid(ExpandModel(spec.model)), spec.seed, BuildOptionsOf(spec.model)))),
      autocast_(spec.model.autocast),
      ties_(Valid(CheckTies(TiesOf(spec.model), layers_))) {
  if (!spec.loss.name.empty()) loss_ = Valid(MakeLoss(spec.loss));
  PlaceLayers();
  std::set<std::pair<int, int>> later_uses;
  for (const TieGroup& tie : ties_) {
    const at::Tensor first = Leaf(tie.uses[0]);
    for (size_t u = 1; u < tie.uses.size(); ++u) {
      Leaf(tie.uses[u]).set_data(first.detach());  // one memory, but a gradient of its own
      later_uses.insert({tie.uses[u].layer, tie.uses[u].parameter});
    }
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const NamedTensors& own = layers_[i].layer->parameters();
    for (size_t p = 0; p < own.size(); ++p) {
      if (later_uses.count({static_cast<int>(i), static_cast<int>(p)}) != 0) continue;
      parameters_.push_back({layers_[i].TensorName(own[p].name), own[p].tensor});
      saved_.push_back(parameters_.back());
    }
    for (const NamedTensor& buffer : layers_[i].layer->buffers()) {
      saved_.push_back({layers_[i].TensorName(buffer.name), buffer.tensor});
    }
  }
  for (const TieGroup& tie : ties_) {
    const std::string name = layers_[tie.uses[0].layer].TensorName(
        layers_[tie.uses[0].layer].layer->parameters()[tie.uses[0].parameter].name);
    for (const TiedUse& use : tie.uses) Leaf(use).set_requires_grad(!IsFrozen(spec.optimizer.groups, name));
  }
  for (const NamedTensor& parameter : parameters_) {
    parameter.tensor.set_requires_grad(!IsFrozen(spec.optimizer.groups, parameter.name));
  }
  optimizer_ = Valid(MakeOptimizer(spec.optimizer, {parameters_}));
}

void PlainReference::PlaceLayers() const {
  if (device_.is_cpu()) return;
  for (const NamedLayer& layer : layers_) {
    for (const NamedTensors* tensors : {&layer.layer->parameters(), &layer.layer->buffers()}) {
      for (const NamedTensor& named : *tensors) at::Tensor(named.tensor).set_data(named.tensor.detach().to(device_));
    }
  }
}

at::Tensor PlainReference::Leaf(const TiedUse& use) const {
  return layers_[use.layer].layer->parameters()[use.parameter].tensor;
}

Batch PlainReference::RunLayers(Batch values, bool training, int micro_batch) const {
  values = values.MapTensors([this](const at::Tensor& tensor) { return tensor.to(device_); });
  SkipTracker skips;
  const AutocastGuard precision(device_.type(), TypeOf(autocast_));
  for (size_t i = 0; i < layers_.size(); ++i) {
    KeyedRandom random(seed_, StepId(step_), MicroBatchIndex(micro_batch), LayerIndex(static_cast<int32_t>(i)));
    values = RunLayer(
        layers_[i], values,
        {.training = training, .recomputing = false, .random = &random, .micro_batch = MicroBatchIndex(micro_batch)},
        skips);
  }
  return values;
}

double PlainReference::Contribute(const Inputs& inputs, const at::Tensor& target, int m,
                                  std::optional<double> total_counted) {
  const std::vector<Batch> chunks = Chunks(inputs, m);
  const std::vector<at::Tensor> targets = target.chunk(m);
  const double total = total_counted.value_or(loss_->Counted(target, {}));
  double sum = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Batch outputs = RunLayers(chunks.at(i), /*training=*/true, next_micro_batch_++);
    const at::Tensor loss = WeightedLoss(outputs, targets[i], total);
    if (loss.requires_grad()) loss.backward();
    sum += loss.item().toDouble();
  }
  if (!std::isfinite(sum)) loss_finite_ = false;
  return sum;
}

at::Tensor PlainReference::WeightedLoss(const Batch& outputs, const at::Tensor& target, double total) const {
  const double share = total == 0 ? 0 : loss_->Counted(target, {}) / total;
  const AutocastGuard precision(device_.type(), TypeOf(autocast_));
  return loss_->Mean(outputs.TensorAt(0), target.to(device_), {}).mul(share);
}

double PlainReference::Evaluate(const Inputs& inputs, const at::Tensor& target, int m) const {
  const at::NoGradGuard no_graph;
  const std::vector<Batch> chunks = Chunks(inputs, m);
  const std::vector<at::Tensor> targets = target.chunk(m);
  double sum = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Batch outputs = RunLayers(chunks.at(i), /*training=*/false, static_cast<int>(i));
    sum += WeightedLoss(outputs, targets[i], loss_->Counted(target, {})).item().toDouble();
  }
  return sum;
}

std::vector<Batch> PlainReference::Forward(const Inputs& inputs, int m) {
  std::vector<Batch> outputs;
  for (const Batch& chunk : Chunks(inputs, m)) {
    outputs.push_back(RunLayers(chunk, /*training=*/true, next_micro_batch_++));
  }
  return outputs;
}

at::Tensor PlainReference::SumOfUses(const TieGroup& tie) const {
  at::Tensor sum;
  for (const TiedUse& use : tie.uses) {
    const at::Tensor gradient = Leaf(use).grad();
    if (gradient.defined()) sum = sum.defined() ? sum.add(gradient) : gradient.clone();
  }
  return sum;
}

void PlainReference::SumTies() {
  const at::NoGradGuard no_graph;
  for (const TieGroup& tie : ties_) {
    const at::Tensor sum = SumOfUses(tie);
    for (const TiedUse& use : tie.uses) Leaf(use).mutable_grad() = at::Tensor();
    Leaf(tie.uses[0]).mutable_grad() = sum;
  }
}

PlainReference::StepResult PlainReference::Step(std::optional<double> learning_rate, std::optional<double> clip_norm) {
  StepResult result;
  result.loss = std::numeric_limits<double>::quiet_NaN();
  SumTies();
  std::vector<at::Tensor> norms = GradientNorms(parameters_);
  for (at::Tensor& norm : norms) norm = norm.cpu();  // a pipeline adds up those of all devices on the host
  result.gradient_norm = GlobalNorm(norms);
  result.learning_rate = learning_rate.value_or(LearningRate(optimizer_spec_, step_));
  result.applied = loss_finite_ && std::isfinite(result.gradient_norm);
  if (result.applied) {
    const double clip = clip_norm.value_or(optimizer_spec_.clip_norm);
    optimizer_->Step(result.learning_rate, ClipScale(result.gradient_norm, clip));
    ++step_;
  }
  EndStep(result.applied);
  return result;
}

void PlainReference::Discard() {
  SumTies();  // so that the parameters hold all gradients
  EndStep(/*applied=*/false);
}

void PlainReference::EndStep(bool applied) {
  for (const NamedLayer& layer : layers_) {
    if (applied) layer.layer->CommitStatistics();
    layer.layer->DiscardStatistics(MicroBatchIndex(0));
  }
  for (NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad() = at::Tensor();
  next_micro_batch_ = 0;
  loss_finite_ = true;
}

PlainReference::StepResult PlainReference::TrainStep(const Inputs& inputs, const at::Tensor& target, int m) {
  const double loss = Contribute(inputs, target, m);
  StepResult result = Step();
  result.loss = loss;
  return result;
}

Tensors PlainReference::Infer(const Inputs& inputs, int m) const {
  const at::NoGradGuard no_graph;
  std::vector<std::vector<at::Tensor>> pieces;  // by output, then by micro-batch
  int micro_batch = 0;
  for (const Batch& chunk : Chunks(inputs, m)) {
    const Tensors outputs = RunLayers(chunk, /*training=*/false, micro_batch++).TensorsByPosition();
    pieces.resize(outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k) pieces[k].push_back(outputs[k]);
  }
  Tensors joined;
  for (const std::vector<at::Tensor>& of_output : pieces) {
    joined.push_back(of_output[0].defined() ? at::cat(of_output, 0) : at::Tensor());
  }
  return joined;
}

NamedTensors PlainReference::Gradients() const {
  NamedTensors gradients;
  for (const NamedTensor& parameter : parameters_) {
    gradients.push_back({parameter.name, parameter.tensor.grad()});
    for (const TieGroup& tie : ties_) {
      if (Leaf(tie.uses[0]).is_same(parameter.tensor)) gradients.back().tensor = SumOfUses(tie);
    }
  }
  return gradients;
}

}  // namespace penstock::testing
