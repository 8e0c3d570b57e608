#include "engine/plan/lanes.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/plan/spec_error.h"
#include "engine/schedule/generators.h"

namespace penstock {
namespace {

absl::Status RefuseChunks(const ScheduleSpec& schedule, const std::string& problem) {
  return RefuseSpec("spec.schedule.chunks", problem, absl::StrCat(schedule.chunks));
}

}  // namespace

absl::StatusOr<std::vector<int>> LanesOfStages(const ScheduleSpec& schedule, int stages) {
  const ScheduleRequest request = {.kind = schedule.kind, .chunks = schedule.chunks, .imported = schedule.imported};
  PENSTOCK_RETURN_IF_ERROR(OfSpecSchedule(CheckPlacement(request)));
  if (stages % schedule.chunks != 0) {
    return RefuseChunks(schedule, absl::StrCat("must divide the number of stages, ", stages));
  }
  if (schedule.imported != nullptr && schedule.imported->actions.stages != stages) {
    return RefuseSpec("spec.schedule.actions", absl::StrCat("must have a list for each of the ", stages, " stages"),
                      absl::StrCat(schedule.imported->actions.stages, " stages"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(request));
  return LanesOfStages(kind.placement, stages / schedule.chunks, schedule.chunks);
}

absl::StatusOr<int> StagesByCost(const PlanRequest& request) {
  const int chunks = request.schedule.chunks;
  if (request.cut.stages > 0) {
    PENSTOCK_RETURN_IF_ERROR(LanesOfStages(request.schedule, request.cut.stages).status());
    return request.cut.stages;
  }
  const int layers = static_cast<int>(request.layers.size());
  if (request.schedule.imported != nullptr) {
    const int stages = request.schedule.imported->actions.stages;
    if (stages <= layers) return stages;
    return RefuseSpec("spec.schedule.actions", absl::StrCat("must have at most ", layers, " stages, one per layer"),
                      absl::StrCat(stages, " stages"));
  }
  if (chunks < 1 || chunks > layers) {
    return RefuseChunks(request.schedule, absl::StrCat("must lie in [1, ", layers, "], the number of layers"));
  }
  return chunks * std::min(static_cast<int>(request.devices.size()), layers / chunks);
}

absl::Status PlaceOnLanes(const PlanRequest& request, std::vector<DeviceStage>& stages) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int> lane_of,
                            LanesOfStages(request.schedule, static_cast<int>(stages.size())));
  std::vector<const DeviceStage*> named(stages.size(), nullptr);  // by lane, a stage whose layers name a device
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].device.empty()) continue;
    const DeviceStage*& first = named[lane_of[s]];
    if (first == nullptr) first = &stages[s];
    if (first->device == stages[s].device) continue;
    return RefuseChunks(request.schedule,
                        absl::StrCat("puts stages ", first - stages.data(), " and ", s,
                                     " on one lane, but their layers name ", first->device, " and ", stages[s].device));
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    if (!stages[s].device.empty()) continue;
    const DeviceStage* other = named[lane_of[s]];
    stages[s].device = other != nullptr ? other->device : request.devices[lane_of[s] % request.devices.size()].name;
  }
  return absl::OkStatus();
}

Schedule ListsByStage(const Schedule& lists) {
  Schedule split{.kind = lists.kind, .stages = lists.stages, .micro_batches = lists.micro_batches};
  split.lanes.resize(lists.stages);
  for (const auto& list : lists.lanes) {
    for (const Action& action : list) split.lanes[action.stage].push_back(action);
  }
  return split;
}

}  // namespace penstock
