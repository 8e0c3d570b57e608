// 1f1b: as few forwards ahead as keep the pipeline busy, then one forward and one backward in turn.
//
// Sources: Harlap et al., "PipeDream", 2018; with a flush per step, as here: Narayanan et al., "Efficient large-scale
// language model training on GPU clusters", 2021.

#include <algorithm>

#include "engine/schedule/generators.h"
#include "engine/schedule/lane_writer.h"

namespace penstock {

Schedule OneForwardOneBackward(int lanes, int micro_batches) {
  Schedule schedule = EmptySchedule("1f1b", lanes, 1, micro_batches);
  for (int lane = 0; lane < lanes; ++lane) {
    LaneWriter list(&schedule, Placement::kLooped, lane);
    // The first gradient needs lanes-1-lane hops and forwards to come back: as many forwards fill that time.
    const int lead = std::min(micro_batches, lanes - 1 - lane);
    for (int i = 0; i < lead; ++i) list.Forward();
    for (int i = 0; i < micro_batches; ++i) {
      if (list.MoreForwards()) list.Forward();
      list.Backward();
    }
  }
  return schedule;
}

}  // namespace penstock
