// Optimizer `lion` (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2):
//
//   c = beta1 * m + (1 - beta1) * g;  p -= rate * (sign(c) + decay * p);  m = beta2 * m + (1 - beta2) * g

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>

#include <utility>

#include "engine/optim/optimizer_kinds.h"

namespace penstock {
namespace {

struct LionSettings {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};

class Lion : public UpdateRule {
 public:
  Lion(const LionSettings& settings, RuleTensors tensors)
      : UpdateRule({{.name = "first_moment"}}, std::move(tensors)), settings_(settings) {}

 private:
  void Update(const std::vector<size_t>& indices, const Tensors& gradients, double learning_rate) override {
    const Tensors parameters = Parameters(indices);
    const Tensors moments = SlotTensors(0, indices);
    const Tensors direction = at::_foreach_lerp(moments, gradients, 1 - settings_.beta1);
    at::_foreach_sign_(direction);
    if (settings_.weight_decay != 0) at::_foreach_mul_(parameters, 1 - learning_rate * settings_.weight_decay);
    at::_foreach_add_(parameters, direction, -learning_rate);
    at::_foreach_lerp_(moments, gradients, 1 - settings_.beta2);
  }

  const LionSettings settings_;
};

}  // namespace

RuleSpec ReadLion(OptionReader& options) {
  const double learning_rate = ReadLearningRate(options, 0.0001);
  LionSettings settings;
  settings.beta1 = ReadBelowOne(options, "beta1", settings.beta1);
  settings.beta2 = ReadBelowOne(options, "beta2", settings.beta2);
  settings.weight_decay = ReadWeightDecay(options, settings.weight_decay);
  return {learning_rate, /*state_ratio=*/1,
          [settings](RuleTensors tensors) { return std::make_unique<Lion>(settings, std::move(tensors)); }};
}

}  // namespace penstock
