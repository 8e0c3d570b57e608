// 1f1b: as few forwards ahead as keep the pipeline busy, then one forward and one backward in turn.
//
// Sources: Harlap et al., "PipeDream", 2018; with a flush per step, as here: Narayanan et al., "Efficient large-scale
// language model training on GPU clusters", 2021.

#include <algorithm>

#include "engine/schedule/generators.h"
#include "engine/schedule/rank_writer.h"

namespace penstock {

Schedule OneForwardOneBackward(int ranks, int microbatches) {
  Schedule schedule = EmptySchedule("1f1b", ranks, 1, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter list(&schedule, Placement::kLooped, rank);
    // The first gradient needs ranks-1-rank hops and forwards to come back: as many forwards fill that time.
    const int lead = std::min(microbatches, ranks - 1 - rank);
    for (int i = 0; i < lead; ++i) list.Forward();
    for (int i = 0; i < microbatches; ++i) {
      if (list.MoreForwards()) list.Forward();
      list.Backward();
    }
  }
  return schedule;
}

}  // namespace penstock
