#pragma once

// Which stages stand together on a lane, and on which device each lane stands.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/device_cut.h"
#include "engine/plan/plan_request.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// The lane of each of so many stages, as the kind of schedule places its chunks. With one chunk: a lane for each.
//
// Fails:     SPEC_INVALID of spec.schedule.kind, or of spec.schedule.chunks where the kind does not take so many or the
//            lanes would not have the same number of stages; of spec.schedule.actions where an imported schedule has
//            other stages.
absl::StatusOr<std::vector<int>> LanesOfStages(const ScheduleSpec& schedule, int stages);

// How many stages a cut by cost makes: as many as are asked for, else those of an imported schedule, else `chunks` per
// device.
//
// Fails:     as LanesOfStages; SPEC_INVALID of spec.schedule.chunks or spec.schedule.actions where the layers are
//            fewer.
absl::StatusOr<int> StagesByCost(const PlanRequest& request);

// Fills in the devices of stages whose layers name none: that of another stage of the lane, else the next one in turn.
//
// Fails:     as LanesOfStages, and where the stages of one lane name several devices.
absl::Status PlaceOnLanes(const PlanRequest& request, std::vector<DeviceStage>& stages);

// The same lists with one list per stage: what it does, in order. For what is counted by stage, not by lane.
Schedule ListsByStage(const Schedule& lists);

}  // namespace penstock
