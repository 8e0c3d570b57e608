#pragma once

// Ends a training step.

#include <vector>

#include "engine/schedule/schedule.h"

namespace penstock {

// Appends `sOPT` for every stage to the list of its rank, in ascending stage order; `rank_of` names the rank of each
// stage, as RanksOfStages of placement.h answers it.
Schedule AppendOptimizer(Schedule schedule, const std::vector<int>& rank_of);

}  // namespace penstock
