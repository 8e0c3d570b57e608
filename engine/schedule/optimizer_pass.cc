#include "engine/schedule/optimizer_pass.h"

#include "engine/base/check.h"

namespace penstock {

Schedule AppendOptimizer(Schedule schedule, const std::vector<int>& lane_of) {
  PENSTOCK_CHECK(static_cast<int>(lane_of.size()) == schedule.stages);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    schedule.lanes.at(lane_of[stage]).push_back({ActionKind::kOptimizer, stage, 0});
  }
  return schedule;
}

}  // namespace penstock
