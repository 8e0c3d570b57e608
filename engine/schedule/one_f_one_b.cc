#include <algorithm>

#include "engine/schedule/generators.h"

namespace penstock {

Schedule OneForwardOneBackward(int ranks, int microbatches) {
  Schedule schedule{.kind = "1f1b", .stages = ranks, .microbatches = microbatches};
  for (int stage = 0; stage < ranks; ++stage) {
    auto& list = schedule.ranks.emplace_back();
    // The first gradient needs ranks-1-stage hops and forwards to come back: as many forwards fill that time.
    const int lead = std::min(microbatches, ranks - 1 - stage);
    int forwards = 0;
    while (forwards < lead) list.push_back({ActionKind::kForward, stage, forwards++});
    for (int backwards = 0; backwards < microbatches; ++backwards) {
      if (forwards < microbatches) list.push_back({ActionKind::kForward, stage, forwards++});
      list.push_back({ActionKind::kBackward, stage, backwards});
    }
  }
  return schedule;
}

}  // namespace penstock
