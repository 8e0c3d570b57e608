#include "engine/schedule/fuse_pass.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/schedule/imported.h"

namespace penstock {

Schedule FuseBackward(Schedule schedule, FuseMode mode) {
  const std::vector<int> lane_of = LaneOfEachStage(schedule);
  const auto awaited = [&](int stage) { return stage > 0 && lane_of[stage - 1] != lane_of[stage]; };
  for (auto& list : schedule.lanes) {
    std::vector<Action> shorter;
    shorter.reserve(list.size());
    for (const Action& action : list) {
      const Action own_input{ActionKind::kInputGradient, action.stage, action.micro_batch};
      if (action.kind == ActionKind::kWeightGradient && !shorter.empty() && shorter.back() == own_input &&
          (mode == FuseMode::kAll || !awaited(action.stage))) {
        shorter.back().kind = ActionKind::kBackward;
      } else {
        shorter.push_back(action);
      }
    }
    list = std::move(shorter);
  }
  return schedule;
}

absl::StatusOr<Schedule> FuseWhereItPays(Schedule schedule, const ScheduleCosts& costs) {
  if (schedule.kind == kImportedKind) return schedule;  // somebody wants it so
  Schedule free = FuseBackward(std::move(schedule), FuseMode::kFree);
  const bool known = std::any_of(costs.stages.begin(), costs.stages.end(),
                                 [](const StageCosts& stage) { return stage.backward.has_value(); });
  if (!known) return free;
  Schedule all = FuseBackward(free, FuseMode::kAll);
  if (all == free) return free;
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation with_free, Simulate(free, costs));
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation with_all, Simulate(all, costs));
  return with_all.makespan <= with_free.makespan ? std::move(all) : std::move(free);
}

}  // namespace penstock
