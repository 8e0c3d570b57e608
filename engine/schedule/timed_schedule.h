#pragma once

#include <vector>

#include "engine/schedule/simulate.h"

namespace penstock {

// A Simulation of what has run: from the times of each lane's compute actions, in the order in which they ran and
// without overlap, to what render.h draws. Idle time has the cause that a simulation would give it; peaks stay empty.
Simulation SimulationOf(std::vector<std::vector<TimedAction>> lanes);

}  // namespace penstock
