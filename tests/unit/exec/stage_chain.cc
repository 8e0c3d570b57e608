#include "tests/unit/exec/stage_chain.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/plan/skip_layout.h"

namespace penstock::testing {
namespace {

Batch Detached(const Batch& batch) {
  return batch.MapTensors([](const at::Tensor& tensor) { return tensor.detach(); });
}

Batch OnesLike(const Batch& batch) {
  return batch.MapTensors([](const at::Tensor& tensor) { return at::ones_like(tensor.detach()); });
}

size_t PortOf(const std::vector<SkipPort>& ports, int peer) {
  for (size_t port = 0; port < ports.size(); ++port) {
    if (ports[port].peer == peer) return port;
  }
  return ports.size();
}

void Append(const Batch& gradients, const std::string& name, NamedTensors& to) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].is_tensor()) to.push_back({absl::StrCat(name, "/", i), *gradients[i].tensor()});
  }
}

}  // namespace

StageChain::StageChain(const Spec& spec) : checkpoint_(spec.checkpoint), input_gradients_(spec.input_gradients) {
  at::set_num_threads(1);
  const std::vector<LayerSpec> specs = ExpandModel(spec.model).value();
  std::vector<NamedLayer> layers = BuildLayers(specs, /*seed=*/7, BuildOptionsOf(spec.model)).value();
  std::vector<SkipDeclaration> skips;
  for (const NamedLayer& layer : layers) skips.push_back(layer.layer->skips());
  const std::vector<SkipRoute> routes = LayOutSkips(skips, spec.first_layers);
  if (!spec.loss.name.empty()) loss_ = MakeLoss(spec.loss).value();
  const size_t count = spec.first_layers.size();
  for (size_t s = 0; s < count; ++s) {
    const size_t end = s + 1 < count ? spec.first_layers[s + 1] : layers.size();
    Stage::Parts parts;
    parts.index = static_cast<int>(s);
    parts.last = s + 1 == count;
    parts.first_layer = LayerIndex(spec.first_layers[s]);
    for (size_t i = spec.first_layers[s]; i < end; ++i) parts.layers.push_back(std::move(layers[i]));
    for (const SkipRoute& route : routes) {
      if (route.edge.to == parts.index) parts.incoming.push_back({route.edge.from, route.names});
      if (route.edge.from == parts.index) parts.outgoing.push_back({route.edge.to, route.names});
    }
    stages_.push_back(Stage::Create(std::move(parts), OptimizerSpec()).value());
  }
}

PassContext StageChain::ContextOf(size_t m, bool recomputing) const {
  return {.training = true,
          .graph = recomputing || !checkpoint_,
          .recomputing = recomputing,
          .input_gradients = input_gradients_,
          .seed = 7,
          .step = StepId(1),
          .micro_batch = MicroBatchIndex(static_cast<int>(m))};
}

LossContext StageChain::LossOf(size_t s, size_t m) const {
  if (loss_ == nullptr || s + 1 < stages_.size()) return {};
  return {.loss = loss_.get(), .target = targets_[m], .share = 0.5};
}

void StageChain::Forward(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets) {
  targets_ = targets;
  passes_.clear();
  for (size_t s = 0; s < stages_.size(); ++s) passes_.emplace_back(inputs.size());
  for (size_t m = 0; m < inputs.size(); ++m) {
    Batch values(inputs[m]);
    for (size_t s = 0; s < stages_.size(); ++s) {
      Pass& pass = passes_[s][m];
      for (const SkipPort& port : stages_[s]->incoming()) {
        const size_t from = PortOf(stages_[port.peer]->outgoing(), static_cast<int>(s));
        const int life = (checkpoint_ ? Portal::kCheckpointed : Portal::kPlain) - 1;
        pass.received.emplace_back(Detached(passes_[port.peer][m].skip_outputs[from]), life);
      }
      stages_[s]->Forward(std::move(values), ContextOf(m, false), LossOf(s, m), pass);
      values = Detached(pass.outputs);
    }
  }
}

void StageChain::Backward(size_t m, Halves halves, ChainGradients& gradients) {
  Batch arriving = loss_ != nullptr ? Batch() : OnesLike(passes_.back()[m].outputs);
  for (size_t s = stages_.size(); s-- > 0;) {
    Pass& pass = passes_[s][m];
    if (checkpoint_) {
      pass.DropGraph();
      stages_[s]->Recompute(ContextOf(m, true), LossOf(s, m), pass);
    }
    InputGradients back;
    if (halves == Halves::kFused) {
      back = stages_[s]->Backward(pass, arriving, /*retain_graph=*/false);
    } else {
      back = stages_[s]->InputGradient(pass, arriving);
      if (halves == Halves::kAdjacent) stages_[s]->WeightGradient(pass);
    }
    Append(back.inputs, absl::StrCat(s, "/", m), gradients.inputs);
    for (size_t port = 0; port < back.skips.size(); ++port) {
      const int peer = stages_[s]->incoming()[port].peer;
      Append(back.skips[port], absl::StrCat(s, "/", m, "/skip", peer), gradients.inputs);
      std::vector<Portal>& sent = passes_[peer][m].sent;
      sent.resize(stages_[peer]->outgoing().size());
      sent[PortOf(stages_[peer]->outgoing(), static_cast<int>(s))].PutGradient(back.skips[port]);
    }
    arriving = std::move(back.inputs);
  }
}

ChainGradients StageChain::Run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets,
                               Halves halves) {
  for (auto& stage : stages_) stage->ClearGradients();
  Forward(inputs, targets);
  ChainGradients gradients;
  for (size_t m = 0; m < inputs.size(); ++m) Backward(m, halves, gradients);
  if (halves == Halves::kOwed) {
    for (size_t m = 0; m < inputs.size(); ++m) {
      for (size_t s = 0; s < stages_.size(); ++s) stages_[s]->WeightGradient(passes_[s][m]);
    }
  }
  for (auto& stage : stages_) {
    for (const NamedTensor& parameter : stage->parameters()) {
      const at::Tensor& gradient = parameter.tensor.grad();
      gradients.parameters.push_back({parameter.name, gradient.defined() ? gradient.clone() : gradient});
    }
    stage->DiscardStatistics(MicroBatchIndex(0));
  }
  return gradients;
}

}  // namespace penstock::testing
