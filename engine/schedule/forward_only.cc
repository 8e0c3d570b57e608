#include "engine/schedule/generators.h"

namespace penstock {

Schedule ForwardOnly(int ranks, int microbatches) {
  Schedule schedule{.kind = "forward-only", .stages = ranks, .microbatches = microbatches};
  for (int stage = 0; stage < ranks; ++stage) {
    auto& list = schedule.ranks.emplace_back();
    for (int i = 0; i < microbatches; ++i) list.push_back({ActionKind::kForward, stage, i});
  }
  return schedule;
}

}  // namespace penstock
