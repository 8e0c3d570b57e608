#pragma once

// How many messages an edge must be able to hold.

#include "engine/schedule/schedule.h"

namespace penstock {

// The least number of credits per directed edge with which the lists run to their end: messages that may wait unread
// before their sender is held. 1 for the kinds with one chunk; more where a rank sends what its neighbour reads only
// after other work of its own, as the last rank of a loop does. 0: the lists do not run at all, or move nothing.
int LeastCredits(const Schedule& schedule);

}  // namespace penstock
