// Optimizer `nadam` (Dozat 2016, "Incorporating Nesterov Momentum into Adam"). With t the steps of the parameter:
//
//   u(t) = beta1 * (1 - 0.96^(t * momentum_decay) / 2);  U = u(1) * ... * u(t)
//   g += decay * p;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   p -= rate * ((1 - u(t)) / (1 - U) * g + u(t + 1) / (1 - U * u(t + 1)) * m) / (sqrt(v / (1 - beta2^t)) + epsilon)

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include <cmath>
#include <utility>

#include "engine/optim/adam_settings.h"

namespace penstock {
namespace {

class Nadam : public UpdateRule {
 public:
  Nadam(const AdamSettings& settings, double momentum_decay, RuleTensors tensors)
      : UpdateRule({{.name = "first_moment"},
                    {.name = "second_moment"},
                    {.name = "momentum_product", .shape = Slot::Shape::kHostScalar, .initial = 1},
                    {.name = "step", .shape = Slot::Shape::kHostScalar}},
                   std::move(tensors)),
        settings_(settings),
        momentum_decay_(momentum_decay) {}

 private:
  double MomentumAt(double step) const { return settings_.beta1 * (1 - 0.5 * std::pow(0.96, step * momentum_decay_)); }

  void Update(const std::vector<size_t>& indices, const Tensors& given, double learning_rate) override {
    const Tensors parameters = Parameters(indices);
    const Tensors gradients =
        settings_.weight_decay == 0 ? given : at::_foreach_add(given, parameters, settings_.weight_decay);
    // The factors of each parameter, which may have taken fewer steps than others.
    std::vector<at::Scalar> deviations, of_gradients, of_moments;
    const Tensors products = SlotTensors(2, indices);
    const Tensors steps = CountStep(3, indices);
    for (size_t i = 0; i < indices.size(); ++i) {
      const auto step = steps[i].item<double>();
      const double now = MomentumAt(step);
      const double next = MomentumAt(step + 1);
      products[i].mul_(now);
      const auto product = products[i].item<double>();
      deviations.emplace_back(std::sqrt(1 - std::pow(settings_.beta2, step)));
      of_gradients.emplace_back(-learning_rate * (1 - now) / (1 - product));
      of_moments.emplace_back(-learning_rate * next / (1 - product * next));
    }
    const Tensors first_moments = SlotTensors(0, indices);
    const Tensors second_moments = SlotTensors(1, indices);
    at::_foreach_lerp_(first_moments, gradients, 1 - settings_.beta1);
    at::_foreach_mul_(second_moments, settings_.beta2);
    at::_foreach_addcmul_(second_moments, gradients, gradients, 1 - settings_.beta2);
    const Tensors divisors = at::_foreach_sqrt(second_moments);
    at::_foreach_div_(divisors, deviations);
    at::_foreach_add_(divisors, settings_.epsilon);
    at::_foreach_addcdiv_(parameters, gradients, divisors, of_gradients);
    at::_foreach_addcdiv_(parameters, first_moments, divisors, of_moments);
  }

  const AdamSettings settings_;
  const double momentum_decay_;
};

}  // namespace

RuleSpec ReadNadam(OptionReader& options) {
  const double learning_rate = ReadLearningRate(options, 0.002);
  const AdamSettings settings = ReadAdamSettings(options, /*weight_decay=*/0);
  const double momentum_decay = options.Double("momentum_decay", 0.004, 0, 1e6);
  return {learning_rate, /*state_ratio=*/2, [settings, momentum_decay](RuleTensors tensors) {
            return std::make_unique<Nadam>(settings, momentum_decay, std::move(tensors));
          }};
}

}  // namespace penstock
