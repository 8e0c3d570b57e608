// lag, zb-h1 and zb-h2: split backwards whose weight gradients stay behind, as far as memory allows, to fill the drain.
//
// Source: Qi et al., "Zero bubble pipeline parallelism", 2023, which gives the two ends: H1 holds no more than 1F1B,
// H2 about twice that. One rule with a lag K makes every point between, with min(m, K+1) activations on every rank.

#include <algorithm>
#include <cstdint>

#include "engine/schedule/generators.h"
#include "engine/schedule/rank_writer.h"

namespace penstock {

Schedule LaggingWeightGradients(int ranks, int microbatches, int lag) {
  Schedule schedule = EmptySchedule("lag", ranks, 1, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter list(&schedule, Placement::kLooped, rank);
    // The lag is spent on forwards ahead at the first rank and on weight gradients behind at the last.
    const int lead = ranks == 1 ? 0 : static_cast<int>(int64_t{lag} * (ranks - 1 - rank) / (ranks - 1));
    for (int i = 0; i < std::min(lead, microbatches); ++i) list.Forward();
    for (int i = 0; i < microbatches; ++i) {
      if (list.MoreForwards()) list.Forward();
      list.InputGradient();
      if (i >= lag - lead) list.WeightGradient();
    }
    list.RemainingWeightGradients();
  }
  return schedule;
}

Schedule ZeroBubbleH1(int ranks, int microbatches) {
  Schedule schedule = LaggingWeightGradients(ranks, microbatches, ranks - 1);
  schedule.kind = "zb-h1";
  return schedule;
}

Schedule ZeroBubbleH2(int ranks, int microbatches) {
  Schedule schedule = LaggingWeightGradients(ranks, microbatches, 2 * ranks - 2);
  schedule.kind = "zb-h2";
  return schedule;
}

}  // namespace penstock
