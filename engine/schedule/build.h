#pragma once

// From a wish to verified lists: generator, passes and verifier in one call.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/imported.h"
#include "engine/schedule/recompute_pass.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"
#include "engine/schedule/verify.h"

namespace penstock {

// What to build.
struct BuildRequest {
  std::string kind =
      {};  // of generators.h; the pipeline's, also for runs without a backward: it says where stages stand
  SchedulePurpose purpose = SchedulePurpose::kTrainingStep;
  int lanes = 1;
  int chunks = 1;                                         // stages per lane
  std::optional<int> lag = {};                            // as ScheduleRequest
  std::optional<int> live_limit = {};                     // as ScheduleRequest
  ScheduleCosts costs = {};                               // as ScheduleRequest
  std::shared_ptr<const ImportedSchedule> imported = {};  // as ScheduleRequest; its I and W are not fused
  int micro_batches = 1;                                  // the real number of this run; ignored by kOptimizerOnly

  // That the pipeline was made for. A batch that has rows for fewer may have fewer than the kind needs (MinMicroBatches
  // of generators.h): its lists are cut short, which is correct but not what the kind is chosen for.
  int planned_micro_batches = 0;

  RecomputeMode recompute = RecomputeMode::kNever;  // ignored without a backward
  std::vector<SkipEdge> skips = {};                 // in any order; of lanes * chunks stages
};

// The lists that stage workers run: sends, receives, recomputation and optimizer included, verified for the purpose.
//
// Placement follows from `kind` for every purpose. Runs without a backward have one action per stage and micro-batch,
// chunk by chunk: F ascending, or B from the last chunk to the first.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID of `skips`, or as CheckPlacement and CheckCosts for every purpose, as
//            Generate for those with a forward and a backward; a kind without backward is refused for training.
//            INTERNAL / BUG if our own lists do not verify.
// Example:   auto lists = BuildSchedule({.kind = "1f1b", .lanes = 2, .micro_batches = 8});
absl::StatusOr<Schedule> BuildSchedule(const BuildRequest& request);

}  // namespace penstock
