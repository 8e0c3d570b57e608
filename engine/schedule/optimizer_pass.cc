#include "engine/schedule/optimizer_pass.h"

#include <vector>

#include "engine/base/check.h"

namespace penstock {

Schedule AppendOptimizer(Schedule schedule) {
  const std::vector<int> rank_of = RankOfEachStage(schedule);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const int rank = rank_of[stage] >= 0 ? rank_of[stage] : stage;
    PENSTOCK_CHECK(rank < static_cast<int>(schedule.ranks.size()));
    schedule.ranks[rank].push_back({ActionKind::kOptimizer, stage, 0});
  }
  return schedule;
}

}  // namespace penstock
