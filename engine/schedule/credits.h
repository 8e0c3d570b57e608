#pragma once

// How many messages an edge must be able to hold.

#include "engine/schedule/schedule.h"

namespace penstock {

// The least number of credits per directed edge with which the lists run to their end: messages that may wait unread
// before their sender is held. 1 for most kinds; about m/P for looped-bfs and for inference over several chunks, whose
// last lane hands a whole chunk to a first lane that is still busy with the one before; some for interleaved-zb and
// large lags. 0: the lists do not run at all, or move nothing.
int MinCredits(const Schedule& schedule);

}  // namespace penstock
