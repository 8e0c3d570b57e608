#include "engine/schedule/comm_pass.h"

#include <vector>

namespace penstock {

Schedule InsertCommunication(const Schedule& schedule) {
  const std::vector<int> rank_of = RankOfEachStage(schedule);
  const auto crosses = [&](int stage, int neighbour) {
    return neighbour >= 0 && neighbour < schedule.stages && rank_of[neighbour] >= 0 &&
           rank_of[stage] != rank_of[neighbour];
  };

  Schedule result = schedule;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<Action> list;
    list.reserve(3 * schedule.ranks[rank].size());
    for (const Action& action : schedule.ranks[rank]) {
      const auto [kind, stage, microbatch, peer] = action;
      const bool forward = kind == ActionKind::kForward;
      const bool backward = ConsumesGradient(kind);
      if (forward && crosses(stage, stage - 1)) list.push_back({ActionKind::kReceiveForward, stage, microbatch});
      if (backward && crosses(stage, stage + 1)) list.push_back({ActionKind::kReceiveBackward, stage, microbatch});
      list.push_back(action);
      if (forward && crosses(stage, stage + 1)) list.push_back({ActionKind::kSendForward, stage, microbatch});
      if (backward && crosses(stage, stage - 1)) list.push_back({ActionKind::kSendBackward, stage, microbatch});
    }
    result.ranks[rank] = std::move(list);
  }
  return result;
}

}  // namespace penstock
