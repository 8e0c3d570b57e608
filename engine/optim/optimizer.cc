#include "engine/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/optim/learning_rate.h"
#include "engine/optim/optimizer_kinds.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

// Every rule by its name, sorted.
struct NamedRule {
  std::string_view name;
  absl::StatusOr<OptimizerRule> (*read)(const OptionMap& options);
};
constexpr NamedRule kRules[] = {{"adamw", ReadAdamw}, {"sgd", ReadSgd}};

// Of scaled copies of gradients at one time.
constexpr int64_t kScaledBytes = 16 << 20;

absl::StatusOr<OptimizerRule> ReadRule(const OptimizerSpec& spec) {
  for (const NamedRule& rule : kRules) {
    if (rule.name == spec.name) return rule.read(spec.options);
  }
  return OptimizerError("spec.optimizer.name",
                        absl::StrCat("is not known; known are ", absl::StrJoin(OptimizerNames(), ", ")),
                        Shortened(spec.name));
}

}  // namespace

std::vector<size_t> Optimizer::WithGradient() const {
  std::vector<size_t> indices;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor.grad().defined()) indices.push_back(i);
  }
  return indices;
}

void Optimizer::Step(double learning_rate, double scale) {
  const at::NoGradGuard no_grad;
  const std::vector<size_t> indices = WithGradient();
  if (indices.empty()) return;
  Tensors gradients;
  for (size_t i : indices) gradients.push_back(parameters_[i].tensor.grad());
  if (scale != 1) at::_foreach_mul_(gradients, scale);
  Update(indices, gradients, learning_rate);
}

void Optimizer::StepKeepingGradients(double learning_rate, double scale) {
  if (scale == 1) return Step(learning_rate, scale);
  const at::NoGradGuard no_grad;
  const std::vector<size_t> indices = WithGradient();
  for (size_t next = 0; next < indices.size();) {
    std::vector<size_t> group;
    Tensors gradients;
    int64_t bytes = 0;
    do {
      group.push_back(indices[next]);
      gradients.push_back(parameters_[indices[next]].tensor.grad());
      bytes += static_cast<int64_t>(gradients.back().nbytes());
      ++next;
    } while (next < indices.size() &&
             bytes + static_cast<int64_t>(parameters_[indices[next]].tensor.grad().nbytes()) <= kScaledBytes);
    Update(group, at::_foreach_mul(gradients, scale), learning_rate);
  }
}

Tensors Optimizer::Changing() const {
  Tensors changing;
  for (size_t i : WithGradient()) {
    changing.push_back(parameters_[i].tensor);
    for (at::Tensor& state : StateOf(i)) changing.push_back(std::move(state));
  }
  return changing;
}

absl::Status OptimizerError(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

absl::Status CheckOptimizer(const OptimizerSpec& spec) {
  PENSTOCK_RETURN_IF_ERROR(ReadRule(spec).status());
  if (!std::isfinite(spec.clip_norm) || spec.clip_norm < 0) {
    return OptimizerError("spec.optimizer.clip_norm", "must be finite and not negative", absl::StrCat(spec.clip_norm));
  }
  return CheckLearningRate(spec.learning_rate_schedule);
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, NamedTensors parameters) {
  PENSTOCK_RETURN_IF_ERROR(CheckOptimizer(spec));
  PENSTOCK_ASSIGN_OR_RETURN(const OptimizerRule rule, ReadRule(spec));
  std::unique_ptr<Optimizer> optimizer;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { optimizer = rule.make(std::move(parameters)); }));
  return optimizer;
}

double OptimizerStateRatio(const OptimizerSpec& spec) {
  const absl::StatusOr<OptimizerRule> rule = ReadRule(spec);
  return rule.ok() ? rule->state_ratio : 0;
}

double LearningRate(const OptimizerSpec& spec, int64_t step) {
  const absl::StatusOr<OptimizerRule> rule = ReadRule(spec);
  PENSTOCK_CHECK(rule.ok());  // the specification was checked
  return rule->learning_rate * LearningRateFactor(spec.learning_rate_schedule, step);
}

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const NamedRule& rule : kRules) names.emplace_back(rule.name);
  return names;
}

}  // namespace penstock
