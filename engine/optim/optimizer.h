#pragma once

// How weights change: one optimizer per stage, one fused call per step.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/optim/optimizer_spec.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// The rule and state for the parameters of one stage.
//
// Model:     the state (momentum, or first and second moments, and the step count) is made at once.
// Threads:   one at a time: the stage's own.
// Fails:     both steps may throw (RunTorch).
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Applies the parameters' gradients times `scale` (1 or the clipping factor). A parameter without gradient stays as it is.
  // The gradients are scaled in place, so a step takes no memory.
  void Step(double learning_rate, double scale);
  // The same bits, and the gradients stay as they are: scaled copies of at most 16 MiB (or of one parameter) at a time.
  void StepKeepingGradients(double learning_rate, double scale);
  // What a step would change now: the parameters that have a gradient, and their state.
  Tensors Changing() const;

  // The state, named `parameter/slot`, in parameter order; views: writing to one changes the state.
  virtual NamedTensors State() const = 0;

 protected:
  explicit Optimizer(NamedTensors parameters) : parameters_(std::move(parameters)) {}
  const NamedTensors& parameters() const { return parameters_; }

 private:
  // Applies these gradients, already scaled, to the parameters of these indices, under NoGrad.
  virtual void Update(const std::vector<size_t>& indices, const Tensors& gradients, double learning_rate) = 0;
  virtual Tensors StateOf(size_t index) const = 0;
  std::vector<size_t> WithGradient() const;

  const NamedTensors parameters_;
};

// Checks a specification. Fails: SPEC_INVALID naming field and value; for an unknown name, with the known ones.
absl::Status CheckOptimizer(const OptimizerSpec& spec);

// `parameters` are leaves; the optimizer keeps references to them.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, NamedTensors parameters);

// Bytes of state per byte of parameters: 1 for SGD with momentum, 0 without, 2 for AdamW.
double OptimizerStateRatio(const OptimizerSpec& spec);

// The rate of step `step` (0 is the first): constant, or linear warm-up from peak/warmup then cosine to final_ratio * peak.
double LearningRate(const OptimizerSpec& spec, int64_t step);

std::vector<std::string> OptimizerNames();  // sorted

}  // namespace penstock
