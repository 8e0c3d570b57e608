#pragma once

// One of the verifier's invariants: the messages of the lists are those of the edges between lanes, once at both ends.

#include <vector>

#include "absl/status/status.h"
#include "engine/schedule/dependencies.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// Which directions a run has.
struct MessageDirections {
  bool forward = true;
  bool backward = true;
};

// Checks that each edge between stages of different lanes, a neighbour's or one of `skips`, has a send and a receive
// per micro-batch and direction, and that there are no other messages.
//
// Fails:     ScheduleFailure of invariant `matching`, for the first message that is missing or has no edge.
// Lifecycle: after CheckShape, CheckSkips, placement and completeness: every stage is on one lane, nothing occurs
// twice.
absl::Status CheckMessages(const Schedule& schedule, const ActionIndex& index, const std::vector<SkipEdge>& skips,
                           MessageDirections directions);

}  // namespace penstock
