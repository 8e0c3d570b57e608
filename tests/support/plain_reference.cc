#include "tests/support/plain_reference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "engine/autograd/seeds.h"
#include "engine/optim/gradient_norm.h"

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

// The rows of micro-batch `i`, as LibTorch itself chunks: not by the engine's scatter, which this is to judge.
Tensors Piece(const std::vector<std::vector<at::Tensor>>& chunks, size_t i) {
  Tensors piece;
  for (const std::vector<at::Tensor>& of_input : chunks) piece.push_back(of_input.at(i));
  return piece;
}

std::vector<std::vector<at::Tensor>> Chunks(const Tensors& tensors, int m) {
  std::vector<std::vector<at::Tensor>> chunks;
  for (const at::Tensor& tensor : tensors) chunks.push_back(tensor.chunk(m));
  return chunks;
}

}  // namespace

PlainReference::PlainReference(const PlainSpec& spec)
    : optimizer_spec_(spec.optimizer),
      seed_(spec.seed),
      layers_(Valid(BuildLayers(Valid(ExpandModel(spec.model)), spec.seed))) {
  if (!spec.loss.name.empty()) loss_ = Valid(MakeLoss(spec.loss));
  for (const NamedLayer& layer : layers_) {
    for (const NamedTensor& parameter : layer.layer->parameters()) {
      parameters_.push_back({layer.name + "." + parameter.name, parameter.tensor});
    }
  }
  optimizer_ = Valid(MakeOptimizer(spec.optimizer, parameters_));
}

Tensors PlainReference::RunLayers(Tensors values, bool training, int microbatch) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    KeyedRandom random(seed_, StepId(step_), MicrobatchIndex(microbatch), LayerIndex(static_cast<int32_t>(i)));
    values = layers_[i].layer->Forward(values, {.training = training, .recomputing = false, .random = &random});
  }
  return values;
}

double PlainReference::Contribute(const Tensors& inputs, const at::Tensor& target, int m,
                                  std::optional<int64_t> total_counted) {
  const std::vector<std::vector<at::Tensor>> chunks = Chunks(inputs, m);
  const std::vector<at::Tensor> targets = target.chunk(m);
  const int64_t total = total_counted.value_or(loss_->Counted(target));
  double sum = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Tensors outputs = RunLayers(Piece(chunks, i), /*training=*/true, next_microbatch_++);
    const double share = total == 0 ? 0 : static_cast<double>(loss_->Counted(targets[i])) / static_cast<double>(total);
    const at::Tensor loss = loss_->Mean(outputs.at(0), targets[i]).mul(share);
    loss.backward();
    sum += static_cast<double>(loss.item<float>());
  }
  if (!std::isfinite(sum)) loss_finite_ = false;
  return sum;
}

std::vector<Tensors> PlainReference::Forward(const Tensors& inputs, int m) {
  const std::vector<std::vector<at::Tensor>> chunks = Chunks(inputs, m);
  std::vector<Tensors> outputs;
  for (size_t i = 0; i < chunks.at(0).size(); ++i) {
    outputs.push_back(RunLayers(Piece(chunks, i), /*training=*/true, next_microbatch_++));
  }
  return outputs;
}

PlainReference::StepResult PlainReference::Step() {
  StepResult result;
  result.loss = std::numeric_limits<double>::quiet_NaN();
  result.gradient_norm = GlobalNorm(GradientNorms(parameters_));
  result.learning_rate = LearningRate(optimizer_spec_, step_);
  result.applied = loss_finite_ && std::isfinite(result.gradient_norm);
  if (result.applied) {
    optimizer_->Step(result.learning_rate, ClipScale(result.gradient_norm, optimizer_spec_.clip_norm));
    ++step_;
  }
  for (NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad() = at::Tensor();
  next_microbatch_ = 0;
  loss_finite_ = true;
  return result;
}

PlainReference::StepResult PlainReference::TrainStep(const Tensors& inputs, const at::Tensor& target, int m) {
  const double loss = Contribute(inputs, target, m);
  StepResult result = Step();
  result.loss = loss;
  return result;
}

Tensors PlainReference::Infer(const Tensors& inputs, int m) const {
  const at::NoGradGuard no_graph;
  const std::vector<std::vector<at::Tensor>> chunks = Chunks(inputs, m);
  std::vector<std::vector<at::Tensor>> pieces;  // by output, then by micro-batch
  for (size_t i = 0; i < chunks.at(0).size(); ++i) {
    const Tensors outputs = RunLayers(Piece(chunks, i), /*training=*/false, static_cast<int>(i));
    pieces.resize(outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k) pieces[k].push_back(outputs[k]);
  }
  Tensors joined;
  for (const std::vector<at::Tensor>& of_output : pieces) joined.push_back(at::cat(of_output, 0));
  return joined;
}

NamedTensors PlainReference::Gradients() const {
  NamedTensors gradients;
  for (const NamedTensor& parameter : parameters_) gradients.push_back({parameter.name, parameter.tensor.grad()});
  return gradients;
}

}  // namespace penstock::testing
