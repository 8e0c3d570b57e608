// Optimizer `adagrad`. s starts at initial_accumulator_value; with t the steps that the parameter took:
//
//   g += decay * p;  s += g^2;  p -= rate / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + epsilon)

#include <ATen/ops/_fused_adagrad.h>

#include <utility>

#include "engine/optim/optimizer_kinds.h"

namespace penstock {
namespace {

struct AdagradSettings {
  double lr_decay = 0;
  double initial_accumulator_value = 0;
  double epsilon = 1e-10;
  double weight_decay = 0;
};

class Adagrad : public UpdateRule {
 public:
  Adagrad(const AdagradSettings& settings, RuleTensors tensors)
      : UpdateRule({{.name = "square_sum", .initial = settings.initial_accumulator_value},
                    {.name = "step", .shape = Slot::Shape::kScalar}},
                   std::move(tensors)),
        settings_(settings) {}

 private:
  void Update(const std::vector<size_t>& indices, const Tensors& gradients, double learning_rate) override {
    at::_fused_adagrad_(Parameters(indices), gradients, SlotTensors(0, indices), CountStep(1, indices), learning_rate,
                        settings_.lr_decay, settings_.weight_decay, settings_.epsilon, /*maximize=*/false);
  }

  const AdagradSettings settings_;
};

}  // namespace

RuleSpec ReadAdagrad(OptionReader& options) {
  const double learning_rate = ReadLearningRate(options, 0.01);
  AdagradSettings settings;
  settings.lr_decay = options.Double("lr_decay", settings.lr_decay, 0, 1e6);
  settings.initial_accumulator_value =
      options.Double("initial_accumulator_value", settings.initial_accumulator_value, 0, 1e12);
  settings.epsilon = options.Double("epsilon", settings.epsilon, 0, 1);
  settings.weight_decay = ReadWeightDecay(options, settings.weight_decay);
  return {learning_rate, /*state_ratio=*/1,
          [settings](RuleTensors tensors) { return std::make_unique<Adagrad>(settings, std::move(tensors)); }};
}

}  // namespace penstock
