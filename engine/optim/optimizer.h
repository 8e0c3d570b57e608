#pragma once

// How weights change: one optimizer per stage, one fused call per step.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/optim/optimizer_spec.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// The rule and state for the parameters of one stage.
//
// Model:     the state (momentum, or first and second moments, and the step count) is made at once, so a step takes no memory.
// Threads:   one at a time: the stage's own.
// Fails:     Step may throw (RunTorch).
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Applies the parameters' gradients times `scale` (1 or the clipping factor). A parameter without gradient stays as it is.
  virtual void Step(double learning_rate, double scale) = 0;

  // The state, named `parameter/slot`, in parameter order; views: writing to one changes the state.
  virtual NamedTensors State() const = 0;
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
