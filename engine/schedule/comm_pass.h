#pragma once

// Adds what moves tensors between lanes.

#include <vector>

#include "engine/schedule/schedule.h"

namespace penstock {

// Adds matched sends and receives where neighbouring stages live on different lanes: RECV_F directly before the F that
// consumes it, SEND_F directly after the F that produces it; RECV_B and SEND_B likewise around B or I. Nothing is added
// between stages of one lane. Runs after the recomputation pass, so that R stands before the wait for the gradient.
//
// Each of `skips` (valid by CheckSkips of skips.h) that crosses lanes gets messages of its own at the same places, with
// the other end named as peer, after the neighbour's and in ascending order of peers; a skip between neighbours too:
// a message carries either what one stage hands to the next, or skip values, never both.
Schedule InsertCommunication(const Schedule& schedule, const std::vector<SkipEdge>& skips = {});

}  // namespace penstock
