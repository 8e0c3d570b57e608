#include "engine/schedule/placement.h"

namespace penstock {

std::vector<int> LanesOfStages(Placement placement, int lanes, int chunks) {
  std::vector<int> lane_of(lanes * chunks);
  for (int stage = 0; stage < lanes * chunks; ++stage) {
    lane_of[stage] = LaneOfStage(placement, lanes, stage);
  }
  return lane_of;
}

}  // namespace penstock
