#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/option_map.h"

namespace penstock {

// How the rate changes from step to step: it rises evenly for `warmup_steps`; the rest counts from their end.
struct LearningRateSpec {
  std::string name = "constant";  // constant, warmup_cosine, linear, polynomial, step
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  // warm-up included; not of constant and step
  double final_ratio = 0;   // of the peak rate, at total_steps
  int64_t step_size = 0;    // of step: after so many steps the rate is multiplied by `gamma`
  double gamma = 0.1;       // of step
  double power = 1;         // of polynomial
};

// Parameters that are treated otherwise than the rest.
struct ParameterGroup {
  std::vector<std::string>
      patterns;            // of names: * is any characters, ? is one; the first group that matches has a parameter
  OptionMap options = {};  // over those of the optimizer
  bool frozen = false;     // gets no gradient, and no step changes it or its state
};

// How weights change.
struct OptimizerSpec {
  std::string name = "adamw";  // OptimizerNames() has all
  OptionMap options = {};      // of the rule; learning_rate is the peak of the schedule
  double clip_norm = 0;        // global gradient norm; 0: no clipping
  LearningRateSpec learning_rate_schedule = {};
  std::vector<ParameterGroup> groups = {};
};

}  // namespace penstock
