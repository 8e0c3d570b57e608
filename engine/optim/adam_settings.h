#pragma once

#include "engine/optim/optimizer_kinds.h"

namespace penstock {

// What Adam, AdamW and NAdam are told, but for the rate.
struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

inline AdamSettings ReadAdamSettings(OptionReader& options, double weight_decay) {
  AdamSettings settings;
  settings.beta1 = ReadBelowOne(options, "beta1", settings.beta1);
  settings.beta2 = ReadBelowOne(options, "beta2", settings.beta2);
  settings.epsilon = options.Double("epsilon", settings.epsilon, 0, 1);
  settings.weight_decay = ReadWeightDecay(options, weight_decay);
  return settings;
}

}  // namespace penstock
