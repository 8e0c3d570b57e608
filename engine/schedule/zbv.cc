// zbv: two chunks in V placement and split backwards. The last stage shares its rank with the first, so a micro-batch's
// backward starts where its forward did, and every rank holds the memory of 1F1B's first rank and no more.
//
// Source: Qi et al., "Pipeline parallelism with controllable memory", 2024; the rule as in PyTorch's ScheduleZBVZeroBubble.

#include <algorithm>

#include "engine/schedule/generators.h"
#include "engine/schedule/rank_writer.h"

namespace penstock {

Schedule ZeroBubbleV(int ranks, int microbatches) {
  constexpr int kDown = 0, kUp = 1;  // the chunk on the way to the turn, and that on the way back
  // The rule is for at least 2P-1 micro-batches; the list of fewer is that of more without the rest.
  const int ruled = std::max(2 * ranks - 1, microbatches);
  Schedule schedule = EmptySchedule("zbv", ranks, 2, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter list(&schedule, Placement::kV, rank);
    const auto up = [&] {
      list.Forward(kUp);
      list.InputGradient(kUp);
      list.WeightGradient(kUp);
    };
    for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) list.Forward(kDown);
    for (int i = 0; i < rank; ++i) {
      list.Forward(kUp);
      list.Forward(kDown);
    }
    for (int i = 0; i < ranks - rank; ++i) up();
    while (list.forwards(kUp) < list.forwards(kDown) || list.forwards(kDown) < ruled) {
      if (list.forwards(kDown) < ruled) list.Forward(kDown);
      list.InputGradient(kDown);
      list.WeightGradient(kDown);
      up();
    }
    for (int i = 0; i < rank; ++i) {
      list.InputGradient(kDown);
      list.InputGradient(kUp);
    }
    for (int i = 0; i < ranks - rank; ++i) {
      list.InputGradient(kDown);
      list.WeightGradient(kDown);
    }
    list.RemainingWeightGradients(kUp);
    list.RemainingWeightGradients(kDown);
  }
  return schedule;
}

}  // namespace penstock
