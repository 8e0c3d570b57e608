#include "engine/schedule/generators.h"

namespace penstock {

Schedule BackwardOnly(int ranks, int microbatches) {
  Schedule schedule{.kind = "backward-only", .stages = ranks, .microbatches = microbatches};
  for (int stage = 0; stage < ranks; ++stage) {
    auto& list = schedule.ranks.emplace_back();
    for (int i = 0; i < microbatches; ++i) list.push_back({ActionKind::kBackward, stage, i});
  }
  return schedule;
}

Schedule NoMicrobatches(int ranks) {
  Schedule schedule{.kind = "optimizer-only", .stages = ranks};
  schedule.ranks.resize(ranks);
  return schedule;
}

}  // namespace penstock
