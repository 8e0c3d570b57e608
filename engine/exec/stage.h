#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/autograd/seeds.h"
#include "engine/base/ids.h"
#include "engine/model/layer_registry.h"
#include "engine/model/loss.h"
#include "engine/optim/optimizer.h"

namespace penstock {

// What one forward is told.
struct PassContext {
  bool training = false;  // dropout on
  bool graph = false;     // keep what backward needs
  bool recomputing = false;
  uint64_t seed = 0;
  StepId step;
  MicrobatchIndex microbatch;  // counted over all contributions of the step
};

// What the last stage does after its layers when the server computes the loss.
struct LossContext {
  const Loss* loss = nullptr;
  at::Tensor target;
  double share = 1;  // of the step's counted elements
};

// What a stage keeps of one micro-batch between forward and backward.
//
// Model:     `stash` are the inputs as they came; `leaves` the inputs of the graph, `outputs` and `loss` its ends. A
//            checkpointed micro-batch has only the stash until it is recomputed.
struct Pass {
  Tensors stash;
  Tensors leaves;
  Tensors outputs;
  at::Tensor loss;  // scaled by the share; last stage with a loss
};

// One partition of the model on its device: layers, parameters, optimizer, and what an action does with them.
//
// Model:     layers [first, first + count) of the model. Gradients stand in the parameters; `rollback_` holds those from
//            before the current contribution.
// Threads:   the device's thread while a run is open; otherwise the pipeline's caller.
// Fails:     Forward, Backward, Recompute and Step may throw: they run under RunTorch.
class Stage {
 public:
  Stage(int index, bool last, LayerIndex first_layer, std::vector<NamedLayer> layers,
        std::unique_ptr<Optimizer> optimizer);

  int index() const { return index_; }
  bool first() const { return index_ == 0; }

  // Runs the layers over inputs. With a graph, `pass` can go backward; without one it holds the stash only, and `outputs`.
  void Forward(Tensors inputs, const PassContext& context, const LossContext& loss, Pass& pass);
  // Builds the graph of a pass from its stash. Afterwards it can go backward.
  void Recompute(const PassContext& context, const LossContext& loss, Pass& pass);
  // Adds to the parameters' gradients; answers the gradients of the stage's inputs (undefined where there is none).
  // `gradients` belong to the outputs; with a loss they are not looked at.
  Tensors Backward(Pass& pass, const Tensors& gradients, bool retain_graph);

  // Contributions: Begin remembers the gradients (if `accumulating`) before the first backward; End(false) brings them back.
  void BeginContribution(bool accumulating);
  void EndContribution(bool keep);
  void ClearGradients();

  const NamedTensors& parameters() const { return parameters_; }  // named layer.parameter
  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }

 private:
  void RunLayers(Pass& pass, Tensors values, const PassContext& context, const LossContext& loss);

  const int index_;
  const bool last_;
  const LayerIndex first_layer_;
  const std::vector<NamedLayer> layers_;
  const std::unique_ptr<Optimizer> optimizer_;
  NamedTensors parameters_;

  bool contributing_ = false;
  Tensors rollback_;  // undefined entries: no gradient before
};

// The parameters of layers, named `layer.parameter`.
NamedTensors ParametersOf(const std::vector<NamedLayer>& layers);

}  // namespace penstock
