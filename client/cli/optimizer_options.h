#pragma once

// The options that describe an optimizer.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/cli11.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// What the command line said; anything unset stays as it is.
struct OptimizerOptions {
  std::vector<std::string> options;  // KEY=VALUE
  std::optional<double> learning_rate;
  std::optional<double> weight_decay;
  std::optional<double> clip_norm;
  std::string rate_schedule;
  std::optional<int64_t> warmup_steps;
  std::optional<int64_t> total_steps;
  std::optional<double> final_ratio;
  std::optional<int64_t> rate_step_size;
  std::optional<double> rate_gamma;
  std::optional<double> rate_power;
  std::vector<std::string> groups;  // PATTERN,PATTERN:KEY=VALUE,KEY=VALUE
  std::vector<std::string> freeze;  // PATTERN
};

void AddOptimizerOptions(CLI::App* command, OptimizerOptions* options);

// Puts what was said over a specification; groups that were named take the place of its groups, the frozen ones first.
// A usage error names the option.
absl::Status PutOptimizer(const OptimizerOptions& options, v1::OptimizerSpec* optimizer);

}  // namespace penstock
