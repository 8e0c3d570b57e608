#pragma once

// How fast a step can be at best, known before any list is made: planners drop what cannot win.

#include "engine/schedule/generators.h"
#include "engine/schedule/recompute_pass.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// A makespan that no list of that kind, placement and size beats, with a barrier at the end of the step. The largest of
// - for each lane: the forwards and hops before its first stage, all its own work, and, unless the kind splits
//   backwards, the backwards and hops of the stages before its first one (of a list without backwards: the forwards
//   after its last stage);
// - the way of one micro-batch through all stages and back.
// Fused backwards count at their own cost, optimizer steps not at all. With equal costs and one micro-batch per lane or
// more it is what 1f1b, interleaved-1f1b, zb-h1, interleaved-zb and zbv take.
//
// Units:     ticks. `costs` one per stage, valid by CheckCosts; the request valid by CheckRequest.
Ticks LowerBound(const ScheduleRequest& request, const ScheduleCosts& costs,
                 RecomputeMode recompute = RecomputeMode::kNever);

}  // namespace penstock
