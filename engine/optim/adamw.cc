// Optimizer `adamw`: p *= 1 - rate * decay; m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; then,
// with t the steps that the parameter took, p -= rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon).

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/optim/optimizer_kinds.h"

namespace penstock {
namespace {

struct AdamwSettings {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
};

class Adamw : public Optimizer {
 public:
  Adamw(const AdamwSettings& settings, NamedTensors parameters)
      : Optimizer(std::move(parameters)), settings_(settings) {
    for (const NamedTensor& parameter : this->parameters()) {
      first_moments_.push_back(at::zeros_like(parameter.tensor.detach()));
      second_moments_.push_back(at::zeros_like(parameter.tensor.detach()));
      steps_.push_back(at::zeros({}, parameter.tensor.options().dtype(at::kFloat)));
    }
  }

  NamedTensors State() const override {
    NamedTensors state;
    for (size_t i = 0; i < parameters().size(); ++i) {
      state.push_back({parameters()[i].name + "/first_moment", first_moments_[i]});
      state.push_back({parameters()[i].name + "/second_moment", second_moments_[i]});
      state.push_back({parameters()[i].name + "/step", steps_[i]});
    }
    return state;
  }

 private:
  void Update(const std::vector<size_t>& indices, const Tensors& gradients, double learning_rate) override {
    Tensors parameters, first_moments, second_moments, steps;
    for (size_t i : indices) {
      parameters.push_back(this->parameters()[i].tensor);
      first_moments.push_back(first_moments_[i]);
      second_moments.push_back(second_moments_[i]);
      steps.push_back(steps_[i]);
    }
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, first_moments, second_moments, /*max_exp_avg_sqs=*/{}, steps,
                      learning_rate, settings_.beta1, settings_.beta2, settings_.weight_decay, settings_.epsilon,
                      /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  Tensors StateOf(size_t index) const override {
    return {first_moments_[index], second_moments_[index], steps_[index]};
  }

  const AdamwSettings settings_;
  Tensors first_moments_;
  Tensors second_moments_;
  Tensors steps_;  // float32 scalars, as the operator wants them: exact up to 16,777,216 steps
};

}  // namespace

absl::StatusOr<OptimizerRule> ReadAdamw(const OptionMap& options) {
  OptionReader reader(options, "spec.optimizer.options");
  AdamwSettings settings;
  constexpr double kBelowOne = 1 - 1e-9;
  settings.learning_rate = reader.Double("learning_rate", settings.learning_rate, 0, kMaxLearningRate);
  settings.beta1 = reader.Double("beta1", settings.beta1, 0, kBelowOne);
  settings.beta2 = reader.Double("beta2", settings.beta2, 0, kBelowOne);
  settings.epsilon = reader.Double("epsilon", settings.epsilon, 0, 1);
  settings.weight_decay = reader.Double("weight_decay", settings.weight_decay, 0, 1e6);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return OptimizerRule{settings.learning_rate, /*state_ratio=*/2, [settings](NamedTensors parameters) {
                         return std::make_unique<Adamw>(settings, std::move(parameters));
                       }};
}

}  // namespace penstock
