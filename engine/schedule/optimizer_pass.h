#pragma once

// Ends a training step.

#include "engine/schedule/schedule.h"

namespace penstock {

// Appends `sOPT` for every stage to the list of its rank, in ascending stage order. A stage without an action, as in
// NoMicrobatches, goes to rank `stage`.
Schedule AppendOptimizer(Schedule schedule);

}  // namespace penstock
