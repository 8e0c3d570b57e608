#pragma once

// Small pipelines of every kind of schedule, with what makes them hard: a skip from the first stage to the last, a tied
// weight, dropout, batch norm.

#include <optional>
#include <string>
#include <vector>

#include "engine/exec/pipeline_spec.h"

namespace penstock::testing {

struct ScheduleCase {
  std::string kind;
  int lanes = 1;
  int chunks = 1;
  std::optional<int> lag = {};
  int min_micro_batches = 1;

  int stages() const { return lanes * chunks; }
};

// Every kind that trains, with every number of lanes and chunks that it takes up to these.
std::vector<ScheduleCase> ScheduleCases(int max_lanes, int max_chunks);

std::string Describe(const ScheduleCase& one);

inline constexpr CheckpointMode kAllModes[] = {CheckpointMode::kAlways, CheckpointMode::kExceptLast,
                                               CheckpointMode::kNever, CheckpointMode::kSkipAdjacent};
inline constexpr int64_t kCaseWidth = 6;

// Two layers or more on every stage; inputs and outputs of kCaseWidth.
PipelineSpec SpecOf(const ScheduleCase& one, int micro_batches, CheckpointMode mode);

}  // namespace penstock::testing
