#include "engine/plan/lanes.h"

#include <algorithm>
#include <map>
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

namespace {

// Where the cut gives ranks, and devices were not named: the device of each lane, the next one of its rank in turn. Empty
// where no other rank is known.
std::map<int, std::string> DevicesByRank(const PlanRequest& request, const std::vector<int>& lane_of) {
  std::map<int, std::vector<std::string>> of_rank;
  for (const Device& device : request.devices) of_rank[device.rank.value()].push_back(device.name);
  std::map<int, std::string> devices;
  if (of_rank.size() < 2 || request.devices_named || request.cut.ranks.size() < lane_of.size()) return devices;
  std::map<int, size_t> next;
  for (size_t s = 0; s < lane_of.size(); ++s) {
    const int rank = request.cut.ranks[s];
    if (devices.contains(lane_of[s]) || !of_rank.contains(rank)) continue;
    const std::vector<std::string>& known = of_rank[rank];
    devices[lane_of[s]] = known[next[rank]++ % known.size()];
  }
  return devices;
}

// Ranks that the cut gives are those of the devices, as far as the group is known.
absl::Status CheckRanksOfDevices(const PlanRequest& request, const std::vector<DeviceStage>& stages) {
  const auto is_other = [](const Device& device) { return device.rank != Rank(0); };
  if (std::none_of(request.devices.begin(), request.devices.end(), is_other)) return absl::OkStatus();
  for (size_t s = 0; s < std::min(stages.size(), request.cut.ranks.size()); ++s) {
    const auto of_rank = [&](const Device& device) { return device.rank == Rank(request.cut.ranks[s]); };
    if (std::none_of(request.devices.begin(), request.devices.end(), of_rank)) {
      return RefuseSpec("spec.cut.ranks", "must be ranks whose devices may be used",
                        absl::StrCat(request.cut.ranks[s]));
    }
    for (const Device& device : request.devices) {
      if (device.name != stages[s].device || device.rank == Rank(request.cut.ranks[s])) continue;
      return RefuseSpec("spec.cut.ranks",
                        absl::StrCat("must be the rank of the device of each stage; stage ", s, " stands on ",
                                     device.name, " of rank ", device.rank.value()),
                        absl::StrCat(request.cut.ranks[s]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

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
  std::map<int, std::string> in_turn = DevicesByRank(request, lane_of);
  for (size_t s = 0; s < stages.size(); ++s) {
    if (!stages[s].device.empty()) continue;
    const int lane = lane_of[s];
    const DeviceStage* other = named[lane];
    stages[s].device = other != nullptr         ? other->device
                       : in_turn.contains(lane) ? in_turn[lane]
                                                : request.devices[lane % request.devices.size()].name;
  }
  return CheckRanksOfDevices(request, stages);
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
