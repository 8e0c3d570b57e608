#include "engine/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "engine/optim/optimizer_kinds.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr char kConstant[] = "constant";
constexpr char kWarmupCosine[] = "warmup_cosine";

absl::Status Fault(const std::string& field, const std::string& problem, const std::string& value) {
  return OptimizerError(absl::StrCat("spec.optimizer.learning_rate_schedule.", field), problem, value);
}

}  // namespace

absl::Status CheckLearningRate(const LearningRateSpec& spec) {
  if (spec.name.empty() || spec.name == kConstant) {
    if (spec.warmup_steps != 0)
      return Fault("warmup_steps", "is for warmup_cosine only", absl::StrCat(spec.warmup_steps));
    if (spec.total_steps != 0) return Fault("total_steps", "is for warmup_cosine only", absl::StrCat(spec.total_steps));
    if (spec.final_ratio != 0) return Fault("final_ratio", "is for warmup_cosine only", absl::StrCat(spec.final_ratio));
    return absl::OkStatus();
  }
  if (spec.name != kWarmupCosine) {
    return Fault("name", "is not known; known are constant, warmup_cosine", Shortened(spec.name));
  }
  if (spec.warmup_steps < 0) return Fault("warmup_steps", "must not be negative", absl::StrCat(spec.warmup_steps));
  if (spec.total_steps <= spec.warmup_steps) {
    return Fault("total_steps", absl::StrCat("must be above the ", spec.warmup_steps, " warm-up steps"),
                 absl::StrCat(spec.total_steps));
  }
  if (!(spec.final_ratio >= 0 && spec.final_ratio <= 1)) {
    return Fault("final_ratio", "must lie in [0, 1]", absl::StrCat(spec.final_ratio));
  }
  return absl::OkStatus();
}

double LearningRateFactor(const LearningRateSpec& spec, int64_t step) {
  if (spec.name != kWarmupCosine) return 1;
  if (step < spec.warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(spec.warmup_steps);
  const double done = static_cast<double>(std::min(step, spec.total_steps) - spec.warmup_steps) /
                      static_cast<double>(spec.total_steps - spec.warmup_steps);
  return spec.final_ratio + (1 - spec.final_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace penstock
