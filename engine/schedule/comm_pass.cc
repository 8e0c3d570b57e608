#include "engine/schedule/comm_pass.h"

#include <vector>

#include "engine/schedule/skips.h"

namespace penstock {

Schedule InsertCommunication(const Schedule& schedule, const std::vector<SkipEdge>& skips) {
  const std::vector<int> lane_of = LaneOfEachStage(schedule);
  const CrossingSkips crossing(skips, lane_of);
  const auto crosses = [&](int stage, int neighbour) {
    return neighbour >= 0 && neighbour < schedule.stages && lane_of[neighbour] >= 0 &&
           lane_of[stage] != lane_of[neighbour];
  };

  Schedule result = schedule;
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    std::vector<Action> list;
    list.reserve(3 * schedule.lanes[lane].size());
    for (const Action& action : schedule.lanes[lane]) {
      const int stage = action.stage;
      const auto move = [&](ActionKind kind, int neighbour, const std::vector<int>& peers) {
        if (crosses(stage, neighbour)) list.push_back({kind, stage, action.micro_batch});
        for (const int peer : peers) list.push_back({kind, stage, action.micro_batch, peer});
      };
      const bool forward = action.kind == ActionKind::kForward;
      const bool backward = ConsumesGradient(action.kind);
      if (forward) move(ActionKind::kReceiveForward, stage - 1, crossing.SourcesOf(stage));
      if (backward) move(ActionKind::kReceiveBackward, stage + 1, crossing.DestinationsOf(stage));
      list.push_back(action);
      if (forward) move(ActionKind::kSendForward, stage + 1, crossing.DestinationsOf(stage));
      if (backward) move(ActionKind::kSendBackward, stage - 1, crossing.SourcesOf(stage));
    }
    result.lanes[lane] = std::move(list);
  }
  return result;
}

}  // namespace penstock
