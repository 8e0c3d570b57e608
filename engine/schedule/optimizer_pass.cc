#include "engine/schedule/optimizer_pass.h"

#include "engine/base/check.h"

namespace penstock {

Schedule AppendOptimizer(Schedule schedule, const std::vector<int>& rank_of) {
  PENSTOCK_CHECK(static_cast<int>(rank_of.size()) == schedule.stages);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    schedule.ranks.at(rank_of[stage]).push_back({ActionKind::kOptimizer, stage, 0});
  }
  return schedule;
}

}  // namespace penstock
