// Optimizer `sgd`: with weight decay g += decay * p; with momentum v = momentum * v + g, and g becomes v, or g +
// momentum * v with Nesterov's rule; then p -= rate * g.

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/optim/optimizer_kinds.h"

namespace penstock {
namespace {

struct SgdSettings {
  double learning_rate = 0.01;
  double momentum = 0;  // 0 keeps no state
  double weight_decay = 0;
  bool nesterov = false;
};

class Sgd : public Optimizer {
 public:
  Sgd(const SgdSettings& settings, NamedTensors parameters) : Optimizer(std::move(parameters)), settings_(settings) {
    if (settings_.momentum == 0) return;
    for (const NamedTensor& parameter : this->parameters())
      momentum_.push_back(at::zeros_like(parameter.tensor.detach()));
  }

  NamedTensors State() const override {
    NamedTensors state;
    for (size_t i = 0; i < momentum_.size(); ++i) state.push_back({parameters()[i].name + "/momentum", momentum_[i]});
    return state;
  }

 private:
  void Update(const std::vector<size_t>& indices, const Tensors& gradients, double learning_rate) override {
    Tensors parameters, momentum;
    for (size_t i : indices) {
      parameters.push_back(this->parameters()[i].tensor);
      if (!momentum_.empty()) momentum.push_back(momentum_[i]);
    }
    // The first step would only set v to g: as v starts at zero and nothing dampens g, every step does that.
    at::_fused_sgd_(parameters, gradients, momentum, settings_.weight_decay, settings_.momentum, learning_rate,
                    /*dampening=*/0, settings_.nesterov, /*maximize=*/false, /*is_first_step=*/false);
  }
  Tensors StateOf(size_t index) const override {
    if (momentum_.empty()) return {};
    return {momentum_[index]};
  }

  const SgdSettings settings_;
  Tensors momentum_;  // empty without momentum
};

}  // namespace

absl::StatusOr<OptimizerRule> ReadSgd(const OptionMap& options) {
  OptionReader reader(options, "spec.optimizer.options");
  SgdSettings settings;
  settings.learning_rate = reader.Double("learning_rate", settings.learning_rate, 0, kMaxLearningRate);
  settings.momentum = reader.Double("momentum", settings.momentum, 0, 1);
  settings.weight_decay = reader.Double("weight_decay", settings.weight_decay, 0, 1e6);
  settings.nesterov = reader.Bool("nesterov", settings.nesterov);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  if (settings.nesterov && settings.momentum == 0) {
    return OptimizerError("spec.optimizer.options[nesterov]", "needs a momentum above 0", "true");
  }
  return OptimizerRule{settings.learning_rate, settings.momentum == 0 ? 0.0 : 1.0, [settings](NamedTensors parameters) {
                         return std::make_unique<Sgd>(settings, std::move(parameters));
                       }};
}

}  // namespace penstock
