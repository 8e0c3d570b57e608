#pragma once

// Undoes splits of the backward that gain nothing: one pass over the graph costs less than two.

#include "absl/status/statusor.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// Which I become a B with the W of their own stage and micro-batch that follows directly.
enum class FuseMode {
  kFree,  // those whose gradient no other lane waits for: of stage 0, and where the stage before shares the lane
  kAll,   // all: gradients for other lanes are ready only when the W would have ended, which zbv can't afford
};

// Works on compute actions, before any other pass.
Schedule FuseBackward(Schedule schedule, FuseMode mode);

// Fuses where it is free, and everywhere if `costs` know what a fused B takes and simulation then ends no later.
// `costs` one entry per stage, or none: unknown. Imported lists stay as they are. Fails as Simulate.
absl::StatusOr<Schedule> FuseWhereItPays(Schedule schedule, const ScheduleCosts& costs);

}  // namespace penstock
