#include "engine/schedule/comm_pass.h"

#include <vector>

#include "engine/schedule/skips.h"

namespace penstock {

Schedule InsertCommunication(const Schedule& schedule, const std::vector<SkipEdge>& skips) {
  const std::vector<int> rank_of = RankOfEachStage(schedule);
  const CrossingSkips crossing(skips, rank_of);
  const auto crosses = [&](int stage, int neighbour) {
    return neighbour >= 0 && neighbour < schedule.stages && rank_of[neighbour] >= 0 &&
           rank_of[stage] != rank_of[neighbour];
  };

  Schedule result = schedule;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<Action> list;
    list.reserve(3 * schedule.ranks[rank].size());
    for (const Action& action : schedule.ranks[rank]) {
      const int stage = action.stage;
      const auto move = [&](ActionKind kind, int neighbour, const std::vector<int>& peers) {
        if (crosses(stage, neighbour)) list.push_back({kind, stage, action.microbatch});
        for (const int peer : peers) list.push_back({kind, stage, action.microbatch, peer});
      };
      const bool forward = action.kind == ActionKind::kForward;
      const bool backward = ConsumesGradient(action.kind);
      if (forward) move(ActionKind::kReceiveForward, stage - 1, crossing.SourcesOf(stage));
      if (backward) move(ActionKind::kReceiveBackward, stage + 1, crossing.DestinationsOf(stage));
      list.push_back(action);
      if (forward) move(ActionKind::kSendForward, stage + 1, crossing.DestinationsOf(stage));
      if (backward) move(ActionKind::kSendBackward, stage - 1, crossing.SourcesOf(stage));
    }
    result.ranks[rank] = std::move(list);
  }
  return result;
}

}  // namespace penstock
