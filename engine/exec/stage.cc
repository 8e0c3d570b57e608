#include "engine/exec/stage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace penstock {

NamedTensors ParametersOf(const std::vector<NamedLayer>& layers) {
  NamedTensors parameters;
  for (const NamedLayer& layer : layers) {
    for (const NamedTensor& parameter : layer.layer->parameters()) {
      parameters.push_back({layer.name + "." + parameter.name, parameter.tensor});
    }
  }
  return parameters;
}

Stage::Stage(int index, bool last, LayerIndex first_layer, std::vector<NamedLayer> layers,
             std::unique_ptr<Optimizer> optimizer)
    : index_(index),
      last_(last),
      first_layer_(first_layer),
      layers_(std::move(layers)),
      optimizer_(std::move(optimizer)),
      parameters_(ParametersOf(layers_)) {}

void Stage::RunLayers(Pass& pass, Tensors values, const PassContext& context, const LossContext& loss) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    KeyedRandom random(context.seed, context.step, context.microbatch,
                       LayerIndex(first_layer_.value() + static_cast<int>(i)));
    values = layers_[i].layer->Forward(
        values, {.training = context.training, .recomputing = context.recomputing, .random = &random});
  }
  if (last_ && loss.loss != nullptr) {
    pass.loss = at::mul(loss.loss->Mean(values.at(0), loss.target), loss.share);
  }
  pass.outputs = std::move(values);
}

void Stage::Forward(Tensors inputs, const PassContext& context, const LossContext& loss, Pass& pass) {
  pass.stash = std::move(inputs);
  if (context.graph) {
    Recompute(context, loss, pass);
    return;
  }
  at::NoGradGuard no_graph;
  RunLayers(pass, pass.stash, context, loss);
}

void Stage::Recompute(const PassContext& context, const LossContext& loss, Pass& pass) {
  at::AutoGradMode with_graph(true);
  pass.leaves.clear();
  for (const at::Tensor& input : pass.stash) {
    at::Tensor leaf = input.detach();
    // The first stage's inputs come from the client: nobody asks for their gradients.
    if (!first() && leaf.is_floating_point()) leaf.requires_grad_(true);
    pass.leaves.push_back(std::move(leaf));
  }
  RunLayers(pass, pass.leaves, context, loss);
}

Tensors Stage::Backward(Pass& pass, const Tensors& gradients, bool retain_graph) {
  for (at::Tensor& leaf : pass.leaves) leaf.mutable_grad().reset();
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> root_gradients;
  if (pass.loss.defined()) {
    if (pass.loss.requires_grad()) roots.push_back(pass.loss);
    if (!roots.empty()) root_gradients.emplace_back();
  } else {
    for (size_t i = 0; i < pass.outputs.size(); ++i) {
      const bool has_gradient = i < gradients.size() && gradients[i].defined();
      if (!has_gradient || !pass.outputs[i].requires_grad()) continue;
      roots.push_back(pass.outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_gradients, retain_graph);
  Tensors input_gradients;
  for (at::Tensor& leaf : pass.leaves) input_gradients.push_back(leaf.grad());
  if (!retain_graph) pass = Pass();
  return input_gradients;
}

void Stage::BeginContribution(bool accumulating) {
  if (contributing_) return;
  contributing_ = true;
  rollback_.assign(parameters_.size(), at::Tensor());
  if (!accumulating) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].tensor.grad();
    if (gradient.defined()) rollback_[i] = gradient.clone();
  }
}

void Stage::EndContribution(bool keep) {
  if (contributing_ && !keep) {
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.mutable_grad() = rollback_[i];
  }
  contributing_ = false;
  rollback_.clear();
}

void Stage::ClearGradients() {
  for (NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

}  // namespace penstock
