#pragma once

// The rules, one source file each, which also reads the options of a specification.

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/base/option_map.h"
#include "engine/optim/optimizer.h"

namespace penstock {

// A rule with the settings that a specification asks for.
struct OptimizerRule {
  double learning_rate = 0;                                                 // at the top of its schedule
  double state_ratio = 0;                                                   // bytes of state per byte of parameters
  std::function<std::unique_ptr<Optimizer>(NamedTensors parameters)> make;  // may throw (RunTorch)
};

// Fail: SPEC_INVALID naming field and value.
absl::StatusOr<OptimizerRule> ReadAdamw(const OptionMap& options);
absl::StatusOr<OptimizerRule> ReadSgd(const OptionMap& options);

// The largest rate that can be asked for. The rules themselves are given the rate of each step.
inline constexpr double kMaxLearningRate = 1e6;

// SPEC_INVALID that names the field and its value.
absl::Status OptimizerError(const std::string& field, const std::string& problem, const std::string& value);

}  // namespace penstock
