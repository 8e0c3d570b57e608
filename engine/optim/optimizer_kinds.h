#pragma once

// The rules, one source file each, which also reads the options of a specification.

#include <functional>
#include <memory>

#include "engine/base/option_map.h"
#include "engine/optim/update_rule.h"

namespace penstock {

// A rule with the settings that a specification asks for.
struct RuleSpec {
  double learning_rate = 0;                                              // at the top of its schedule
  double state_ratio = 0;                                                // bytes of state per byte of parameters
  std::function<std::unique_ptr<UpdateRule>(RuleTensors tensors)> make;  // may throw (RunTorch)
};

// Faults stay in the reader.
RuleSpec ReadAdagrad(OptionReader& options);
RuleSpec ReadAdam(OptionReader& options);
RuleSpec ReadAdamw(OptionReader& options);
RuleSpec ReadLion(OptionReader& options);
RuleSpec ReadNadam(OptionReader& options);
RuleSpec ReadRmsprop(OptionReader& options);
RuleSpec ReadSgd(OptionReader& options);

// What several rules read alike: the rate that can be asked for (the rules themselves are given the rate of each step),
// the decay of weights, and the decay of a running average, below 1.
inline double ReadLearningRate(OptionReader& options, double fallback) {
  return options.Double("learning_rate", fallback, 0, 1e6);
}
inline double ReadWeightDecay(OptionReader& options, double fallback) {
  return options.Double("weight_decay", fallback, 0, 1e6);
}
inline double ReadBelowOne(OptionReader& options, const char* name, double fallback) {
  return options.Double(name, fallback, 0, 1 - 1e-9);
}

}  // namespace penstock
