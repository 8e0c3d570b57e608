// Optimizer `sgd`: with weight decay g += decay * p; with momentum v = momentum * v + g, and g becomes v, or g +
// momentum * v with Nesterov's rule; then p -= rate * g.

#include <ATen/ops/_fused_sgd.h>

#include <utility>

#include "engine/optim/optimizer_kinds.h"

namespace penstock {
namespace {

struct SgdSettings {
  double momentum = 0;  // 0 keeps no state
  double weight_decay = 0;
  bool nesterov = false;
};

class Sgd : public UpdateRule {
 public:
  Sgd(const SgdSettings& settings, RuleTensors tensors)
      : UpdateRule(settings.momentum == 0 ? std::vector<Slot>() : std::vector<Slot>{{.name = "momentum"}},
                   std::move(tensors)),
        settings_(settings) {}

 private:
  void Update(const std::vector<size_t>& indices, const Tensors& gradients, double learning_rate) override {
    const Tensors momentum = settings_.momentum == 0 ? Tensors() : SlotTensors(0, indices);
    // The first step would only set v to g: as v starts at zero and nothing dampens g, every step does that.
    at::_fused_sgd_(Parameters(indices), gradients, momentum, settings_.weight_decay, settings_.momentum, learning_rate,
                    /*dampening=*/0, settings_.nesterov, /*maximize=*/false, /*is_first_step=*/false);
  }

  const SgdSettings settings_;
};

}  // namespace

RuleSpec ReadSgd(OptionReader& options) {
  const double learning_rate = ReadLearningRate(options, 0.01);
  SgdSettings settings;
  settings.momentum = options.Double("momentum", settings.momentum, 0, 1);
  settings.weight_decay = ReadWeightDecay(options, settings.weight_decay);
  settings.nesterov = options.Bool("nesterov", settings.nesterov);
  if (settings.nesterov && settings.momentum == 0) options.Refuse("nesterov", "needs a momentum above 0");
  return {learning_rate, settings.momentum == 0 ? 0.0 : 1.0,
          [settings](RuleTensors tensors) { return std::make_unique<Sgd>(settings, std::move(tensors)); }};
}

}  // namespace penstock
