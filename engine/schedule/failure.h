#pragma once

// The error of a broken schedule: the invariant, the place, the cause, then the grid with the cells concerned marked.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/schedule/dependencies.h"
#include "engine/schedule/grid.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// INVALID_ARGUMENT / SPEC_INVALID with values `invariant`, `lane`, `position`, `action`. A place past the end of its
// list is where a missing action should have stood; a negative lane means no place. `marks` default to the place.
absl::Status ScheduleFailure(const Schedule& schedule, std::string_view invariant, Place place, const Action& action,
                             std::string_view cause, GridMarks marks = {});

// Refuses sizes beyond the limits, actions whose stage, micro-batch or peer is out of range, and peers where none can
// be: what ActionIndex and Dependencies rely on.
absl::Status CheckShape(const Schedule& schedule);

// The failure of a walk that did not finish: the cycle of waits, from its lowest lane, or the action that is nowhere.
absl::Status ExplainStuck(const Schedule& schedule, const Dependencies& dependencies, const ListWalk& walk);

}  // namespace penstock
