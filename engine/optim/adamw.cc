// Optimizer `adamw`: as adam, but the decay takes from the parameter, not from the gradient. With t the steps that the
// parameter took:
//
//   p *= 1 - rate * decay;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   p -= rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)

#include <ATen/ops/_fused_adamw.h>

#include <utility>

#include "engine/optim/adam_settings.h"

namespace penstock {
namespace {

class Adamw : public UpdateRule {
 public:
  Adamw(const AdamSettings& settings, RuleTensors tensors)
      // Steps are float32, as the operator wants them: exact up to 16,777,216.
      : UpdateRule(
            {{.name = "first_moment"}, {.name = "second_moment"}, {.name = "step", .shape = Slot::Shape::kScalar}},
            std::move(tensors)),
        settings_(settings) {}

 private:
  void Update(const std::vector<size_t>& indices, const Tensors& gradients, double learning_rate) override {
    at::_fused_adamw_(Parameters(indices), gradients, SlotTensors(0, indices), SlotTensors(1, indices),
                      /*max_exp_avg_sqs=*/{}, CountStep(2, indices), learning_rate, settings_.beta1, settings_.beta2,
                      settings_.weight_decay, settings_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }

  const AdamSettings settings_;
};

}  // namespace

RuleSpec ReadAdamw(OptionReader& options) {
  const double learning_rate = ReadLearningRate(options, 0.001);
  const AdamSettings settings = ReadAdamSettings(options, /*weight_decay=*/0.01);
  return {learning_rate, /*state_ratio=*/2,
          [settings](RuleTensors tensors) { return std::make_unique<Adamw>(settings, std::move(tensors)); }};
}

}  // namespace penstock
