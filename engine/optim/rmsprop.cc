// Optimizer `rmsprop`:
//
//   g += decay * p;  s = alpha * s + (1 - alpha) * g^2;  d = sqrt(s) + epsilon
//   centered:        a = alpha * a + (1 - alpha) * g;    d = sqrt(s - a^2) + epsilon
//   p -= rate * g / d;  with momentum: v = momentum * v + g / d;  p -= rate * v

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include <utility>

#include "engine/optim/optimizer_kinds.h"

namespace penstock {
namespace {

struct RmspropSettings {
  double alpha = 0.99;
  double epsilon = 1e-8;
  double momentum = 0;  // 0 keeps none
  bool centered = false;
  double weight_decay = 0;
};

class Rmsprop : public UpdateRule {
 public:
  Rmsprop(const RmspropSettings& settings, RuleTensors tensors)
      : UpdateRule(SlotsOf(settings), std::move(tensors)), settings_(settings) {}

 private:
  static constexpr size_t kSquares = 0;
  static constexpr size_t kStep = 1;  // which nothing reads here: PyTorch's optimizer has it
  static constexpr size_t kMomentum = 2;

  // The average of the gradients comes last.
  static std::vector<Slot> SlotsOf(const RmspropSettings& settings) {
    std::vector<Slot> slots = {{.name = "square_average"}, {.name = "step", .shape = Slot::Shape::kHostScalar}};
    if (settings.momentum != 0) slots.push_back({.name = "momentum"});
    if (settings.centered) slots.push_back({.name = "gradient_average"});
    return slots;
  }

  void Update(const std::vector<size_t>& indices, const Tensors& given, double learning_rate) override {
    CountStep(kStep, indices);
    const Tensors parameters = Parameters(indices);
    const Tensors gradients =
        settings_.weight_decay == 0 ? given : at::_foreach_add(given, parameters, settings_.weight_decay);
    const Tensors squares = SlotTensors(kSquares, indices);
    at::_foreach_mul_(squares, settings_.alpha);
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - settings_.alpha);
    Tensors divisors;
    if (settings_.centered) {
      const Tensors averages = SlotTensors(settings_.momentum == 0 ? kMomentum : kMomentum + 1, indices);
      at::_foreach_lerp_(averages, gradients, 1 - settings_.alpha);
      divisors = at::_foreach_addcmul(squares, averages, averages, -1);
      at::_foreach_sqrt_(divisors);
    } else {
      divisors = at::_foreach_sqrt(squares);
    }
    at::_foreach_add_(divisors, settings_.epsilon);
    if (settings_.momentum == 0) {
      at::_foreach_addcdiv_(parameters, gradients, divisors, -learning_rate);
      return;
    }
    const Tensors momentum = SlotTensors(kMomentum, indices);
    at::_foreach_mul_(momentum, settings_.momentum);
    at::_foreach_addcdiv_(momentum, gradients, divisors);
    at::_foreach_add_(parameters, momentum, -learning_rate);
  }

  const RmspropSettings settings_;
};

}  // namespace

RuleSpec ReadRmsprop(OptionReader& options) {
  const double learning_rate = ReadLearningRate(options, 0.01);
  RmspropSettings settings;
  settings.alpha = ReadBelowOne(options, "alpha", settings.alpha);
  settings.epsilon = options.Double("epsilon", settings.epsilon, 0, 1);
  settings.momentum = options.Double("momentum", settings.momentum, 0, 1);
  settings.centered = options.Bool("centered", settings.centered);
  settings.weight_decay = ReadWeightDecay(options, settings.weight_decay);
  const double state_ratio = 1 + (settings.momentum != 0 ? 1 : 0) + (settings.centered ? 1 : 0);
  return {learning_rate, state_ratio,
          [settings](RuleTensors tensors) { return std::make_unique<Rmsprop>(settings, std::move(tensors)); }};
}

}  // namespace penstock
