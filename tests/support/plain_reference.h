#pragma once

// The plain training loop to compare pipelines with: one thread, no stages, no schedule, LibTorch's own autograd.

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/model/layer_registry.h"
#include "engine/model/loss.h"
#include "engine/model/model_spec.h"
#include "engine/model/ties.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/optimizer_spec.h"
#include "engine/tensor/micro_batch.h"

namespace penstock::testing {

// What a reference is made from; a pipeline with the same specification starts from the same weights.
struct PlainSpec {
  ModelSpec model;
  LossSpec loss;
  OptimizerSpec optimizer;
  uint64_t seed = 0;
  c10::Device device = c10::kCPU;  // where it computes
};

// Holds all layers of a model and trains it as a plain loop does: micro-batches one after the other, each forward
// through all layers and backward through the whole graph, then clip and step.
//
// Model:     Uses the engine's layers, losses, optimizers and keys, and nothing of its execution. Tied parameters have
//            a leaf per use, whose gradients are summed in model order before the step: that is what a tie means here.
// Threads:   one at a time. Results are bit for bit those of a pipeline whose stages have as many intra-op threads as
//            the calling thread: set one (at::set_num_threads(1)) to compare with stages on one core each.
// Lifecycle: TrainStep, or any number of Contribute and then Step or Discard.
// Fails:     ends the program if the specification is invalid; otherwise throws what LibTorch throws.
// Example:   PlainReference plain({.model = {.name = "mlp"}, .loss = {.name = "mean_squared_error"}, .optimizer = {}});
//            for (int i = 0; i < 10; ++i) losses.push_back(plain.TrainStep({input}, target, 4).loss);
class PlainReference {
 public:
  explicit PlainReference(const PlainSpec& spec);

  // The values of a mini-batch: tensors are split, anything else goes into every micro-batch.
  using Inputs = std::vector<Value>;

  struct StepResult {
    double loss = 0;  // of TrainStep; NaN from Step
    double gradient_norm = 0;
    bool applied = false;
    double learning_rate = 0;
  };

  // One whole step over a mini-batch in `m` micro-batches.
  StepResult TrainStep(const Inputs& inputs, const at::Tensor& target, int m);

  // Adds the gradients of one mini-batch to the open accumulation; micro-batch numbers run on from the last one.
  // Returns what it adds to the loss of the step. `total_counted`: counted elements of the whole step; unset: of this
  // call.
  double Contribute(const Inputs& inputs, const at::Tensor& target, int m,
                    std::optional<double> total_counted = std::nullopt);
  // The loss of a mini-batch without dropout and graph, with running statistics; nothing changes.
  double Evaluate(const Inputs& inputs, const at::Tensor& target, int m) const;
  // A training forward that keeps its graph, for a loss made elsewhere: call backward on what follows from the outputs,
  // one list per micro-batch, in order. The gradients join the open accumulation.
  std::vector<Batch> Forward(const Inputs& inputs, int m);
  // Clips, applies unless the norm or a loss is not finite, and clears the gradients. What is set stands in for the
  // specification's.
  StepResult Step(std::optional<double> learning_rate = std::nullopt, std::optional<double> clip_norm = std::nullopt);
  // Drops the open accumulation.
  void Discard();

  // A forward without graph and dropout; the outputs of all micro-batches joined: tensors, and None for anything else.
  Tensors Infer(const Inputs& inputs, int m) const;

  // Named `layer.parameter`, in model order; views. A tied one stands there once, under its first name.
  const NamedTensors& Parameters() const { return parameters_; }
  // Parameters and buffers, as a pipeline saves them.
  const NamedTensors& SavedTensors() const { return saved_; }
  // The gradients in the same order and under the same names, a tied one's summed; undefined where there is none.
  NamedTensors Gradients() const;
  // Named `layer.parameter/slot`; views.
  NamedTensors OptimizerState() const { return optimizer_->State(); }

  int64_t step() const { return step_; }

 private:
  void PlaceLayers() const;
  Batch RunLayers(Batch values, bool training, int micro_batch) const;
  at::Tensor WeightedLoss(const Batch& outputs, const at::Tensor& target, double total) const;
  at::Tensor SumOfUses(const TieGroup& tie) const;
  void SumTies();
  void EndStep(bool applied);
  at::Tensor Leaf(const TiedUse& use) const;

  const OptimizerSpec optimizer_spec_;
  const uint64_t seed_;
  const c10::Device device_;
  std::vector<NamedLayer> layers_;
  std::unique_ptr<Loss> loss_;  // null without a loss
  const std::string autocast_;
  std::vector<TieGroup> ties_;
  NamedTensors parameters_;  // a tied one once, under its first name
  NamedTensors saved_;       // and the buffers, in model order
  std::unique_ptr<Optimizer> optimizer_;
  int64_t step_ = 0;
  int next_micro_batch_ = 0;
  bool loss_finite_ = true;
};

}  // namespace penstock::testing
