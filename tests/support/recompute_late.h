#pragma once

// What a schedule would be without its early recomputation, to show what that is worth.

#include "engine/schedule/schedule.h"

namespace penstock::testing {

// Moves each R behind the receives that stand between it and its backward, so that it waits for the gradient: it costs
// the recomputation of P-1 lanes. Runs after the communication pass.
Schedule RecomputeLate(Schedule schedule);

}  // namespace penstock::testing
