#pragma once

// How weights change: one optimizer per stage, with an update rule for each group of its parameters.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/optim/optimizer_spec.h"
#include "engine/optim/update_rule.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// The rules and their state for the parameters of one stage.
//
// Model:     parameters of no group, and each group, have a rule with settings of their own. Frozen ones have state,
//            too, so that they can be learnt later on, but no step touches them.
// Threads:   one at a time: the stage's own.
// Fails:     both steps may throw (RunTorch).
class Optimizer {
 public:
  // As UpdateRule's. `learning_rate` is that of parameters whose group has none; the others' are in proportion.
  void Step(double learning_rate, double scale);
  void StepKeepingGradients(double learning_rate, double scale);
  Tensors Changing(bool ever = false) const;
  NamedTensors State() const;

  // The same parameters and state under other settings of the same rule. Fails: as MakeOptimizer; SPEC_INVALID for
  // settings that keep other state, such as a momentum where there was none.
  absl::StatusOr<std::unique_ptr<Optimizer>> WithSettings(const OptimizerSpec& spec) const;

 private:
  friend absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, RuleTensors tensors);
  struct Part {
    bool frozen = false;
    double rate_ratio = 1;  // to the optimizer's own rate
    std::unique_ptr<UpdateRule> rule = nullptr;
  };
  struct Place {
    size_t part = 0;
    size_t index = 0;  // among the part's parameters
  };
  Optimizer(NamedTensors parameters, std::vector<Part> parts, std::vector<Place> places);

  const NamedTensors parameters_;
  const std::vector<Part> parts_;
  const std::vector<Place> places_;  // by parameter
};

// Checks a specification, but for the names of its groups (parameter_groups.h). Fails: SPEC_INVALID naming field and
// value; for an unknown name, with the known ones.
absl::Status CheckOptimizer(const OptimizerSpec& spec);

// An optimizer of `tensors.parameters`, in the groups that their names fall into. It takes over what state there is.
// Fails: as CheckOptimizer; as RunTorch.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, RuleTensors tensors);

// Bytes of state per byte of parameters: 1 for SGD with momentum, 0 without, 2 for AdamW; the most of any group.
double OptimizerStateRatio(const OptimizerSpec& spec);

// The rate of step `step` (0 is the first), of parameters whose group has none of its own.
double LearningRate(const OptimizerSpec& spec, int64_t step);

std::vector<std::string> OptimizerNames();  // sorted

}  // namespace penstock
