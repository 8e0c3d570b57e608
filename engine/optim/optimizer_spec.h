#pragma once

#include <cstdint>
#include <string>

#include "engine/base/option_map.h"

namespace penstock {

struct LearningRateSpec {
  std::string name = "constant";  // constant, warmup_cosine
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double final_ratio = 0;  // of the peak rate, at total_steps
};

// How weights change.
struct OptimizerSpec {
  std::string name = "adamw";  // sgd, adamw
  OptionMap options;           // learning_rate, weight_decay, momentum, nesterov, beta1, beta2, epsilon
  double clip_norm = 0;        // global gradient norm; 0: no clipping
  LearningRateSpec learning_rate_schedule;
};

}  // namespace penstock
