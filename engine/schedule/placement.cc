#include "engine/schedule/placement.h"

namespace penstock {

std::vector<int> RanksOfStages(Placement placement, int ranks, int chunks) {
  std::vector<int> rank_of(ranks * chunks);
  for (int stage = 0; stage < ranks * chunks; ++stage) {
    rank_of[stage] = RankOfStage(placement, ranks, stage);
  }
  return rank_of;
}

}  // namespace penstock
