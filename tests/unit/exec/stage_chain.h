#pragma once

// Stages in a row without schedule, threads and transport: micro-batches go forward and backward as a test says.

#include <memory>
#include <string>
#include <vector>

#include "engine/exec/stage.h"
#include "engine/model/model_spec.h"

namespace penstock::testing {

// How a micro-batch goes backward.
enum class Halves {
  kFused,
  kAdjacent,  // W directly behind its I
  kOwed,      // the W of all micro-batches behind the I of all
};

// What came of a chain's micro-batches, in a form to compare: input gradients by stage and micro-batch, skip gradients
// too.
struct ChainGradients {
  NamedTensors parameters;  // accumulated over the micro-batches
  NamedTensors inputs;      // stage/micro-batch/position
};

// Model:     `first_layers` cuts the model of the specification into stages. The last stage computes the loss.
class StageChain {
 public:
  struct Spec {
    ModelSpec model;
    std::vector<int> first_layers = {0};
    LossSpec loss = {};  // without one, the gradient of the outputs is one everywhere
    bool checkpoint = false;
    bool input_gradients = false;
  };
  explicit StageChain(const Spec& spec);

  // All micro-batches forward, then backward in ascending order; gradients start from nothing. Throws as layers do.
  ChainGradients Run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets, Halves halves);

  Stage& stage(size_t s) { return *stages_[s]; }
  size_t size() const { return stages_.size(); }
  const std::vector<std::unique_ptr<Stage>>& stages() const { return stages_; }
  // The passes as the last Forward and Backward have left them, [stage][micro-batch].
  std::vector<std::vector<Pass>>& passes() { return passes_; }
  void Forward(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets);

 private:
  PassContext ContextOf(size_t m, bool recomputing) const;
  LossContext LossOf(size_t s, size_t m) const;
  void Backward(size_t m, Halves halves, ChainGradients& gradients);

  const bool checkpoint_;
  const bool input_gradients_;
  std::unique_ptr<Loss> loss_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<at::Tensor> targets_;
  std::vector<std::vector<Pass>> passes_;
};

}  // namespace penstock::testing
