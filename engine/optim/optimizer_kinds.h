#pragma once

// The rules, one source file each, with their settings as read from the options of a specification.

#include <memory>

#include "absl/status/statusor.h"
#include "engine/base/option_map.h"
#include "engine/optim/optimizer.h"

namespace penstock {

struct SgdSettings {
  double learning_rate = 0.01;
  double momentum = 0;  // 0 keeps no state
  double weight_decay = 0;
  bool nesterov = false;
};
absl::StatusOr<SgdSettings> ReadSgd(const OptionMap& options);
std::unique_ptr<Optimizer> MakeSgd(const SgdSettings& settings, NamedTensors parameters);

struct AdamwSettings {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};
absl::StatusOr<AdamwSettings> ReadAdamw(const OptionMap& options);
std::unique_ptr<Optimizer> MakeAdamw(const AdamwSettings& settings, NamedTensors parameters);

// The largest rate that can be asked for. The rules themselves are given the rate of each step.
inline constexpr double kMaxLearningRate = 1e6;

// SPEC_INVALID that names the field and its value.
absl::Status OptimizerError(const std::string& field, const std::string& problem, const std::string& value);

}  // namespace penstock
