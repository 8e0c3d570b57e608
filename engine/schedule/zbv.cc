// zbv: two chunks in V placement and split backwards. The last stage shares its lane with the first, so a micro-batch's
// backward starts where its forward did, and every lane holds the memory of 1F1B's first lane and no more.
//
// Source: Qi et al., "Pipeline parallelism with controllable memory", 2024; the rule as in PyTorch's
// ScheduleZBVZeroBubble.

#include <algorithm>

#include "engine/schedule/generators.h"
#include "engine/schedule/lane_writer.h"

namespace penstock {

Schedule ZeroBubbleV(int lanes, int micro_batches) {
  constexpr int kDown = 0, kUp = 1;  // the chunk on the way to the turn, and that on the way back
  // The rule is for at least 2P-1 micro-batches; the list of fewer is that of more without the rest.
  const int ruled = std::max(2 * lanes - 1, micro_batches);
  Schedule schedule = EmptySchedule("zbv", lanes, 2, micro_batches);
  for (int lane = 0; lane < lanes; ++lane) {
    LaneWriter list(&schedule, Placement::kV, lane);
    const auto up = [&] {
      list.Forward(kUp);
      list.InputGradient(kUp);
      list.WeightGradient(kUp);
    };
    for (int i = 0; i < 2 * (lanes - lane) - 1; ++i) list.Forward(kDown);
    for (int i = 0; i < lane; ++i) {
      list.Forward(kUp);
      list.Forward(kDown);
    }
    for (int i = 0; i < lanes - lane; ++i) up();
    while (list.forwards(kUp) < list.forwards(kDown) || list.forwards(kDown) < ruled) {
      if (list.forwards(kDown) < ruled) list.Forward(kDown);
      list.InputGradient(kDown);
      list.WeightGradient(kDown);
      up();
    }
    for (int i = 0; i < lane; ++i) {
      list.InputGradient(kDown);
      list.InputGradient(kUp);
    }
    for (int i = 0; i < lanes - lane; ++i) {
      list.InputGradient(kDown);
      list.WeightGradient(kDown);
    }
    list.RemainingWeightGradients(kUp);
    list.RemainingWeightGradients(kDown);
  }
  return schedule;
}

}  // namespace penstock
