#pragma once

// Ends a training step.

#include <vector>

#include "engine/schedule/schedule.h"

namespace penstock {

// Appends `sOPT` for every stage to the list of its lane, in ascending stage order; `lane_of` names the lane of each
// stage, as LanesOfStages of placement.h returns it.
Schedule AppendOptimizer(Schedule schedule, const std::vector<int>& lane_of);

}  // namespace penstock
