// lag, zb-h1 and zb-h2: split backwards whose weight gradients stay behind, as far as memory allows, to fill the drain.
//
// Source: Qi et al., "Zero bubble pipeline parallelism", 2023, which gives the two ends: H1 holds no more than 1F1B,
// H2 about twice that. One rule with a lag K makes every point between, with min(m, K+1) activations on every lane.

#include <algorithm>
#include <cstdint>

#include "engine/schedule/generators.h"
#include "engine/schedule/lane_writer.h"

namespace penstock {

Schedule LaggingWeightGradients(int lanes, int micro_batches, int lag) {
  Schedule schedule = EmptySchedule("lag", lanes, 1, micro_batches);
  for (int lane = 0; lane < lanes; ++lane) {
    LaneWriter list(&schedule, Placement::kLooped, lane);
    // The lag is spent on forwards ahead at the first lane and on weight gradients behind at the last.
    const int lead = lanes == 1 ? 0 : static_cast<int>(int64_t{lag} * (lanes - 1 - lane) / (lanes - 1));
    for (int i = 0; i < std::min(lead, micro_batches); ++i) list.Forward();
    for (int i = 0; i < micro_batches; ++i) {
      if (list.MoreForwards()) list.Forward();
      list.InputGradient();
      if (i >= lag - lead) list.WeightGradient();
    }
    list.RemainingWeightGradients();
  }
  return schedule;
}

Schedule ZeroBubbleH1(int lanes, int micro_batches) {
  Schedule schedule = LaggingWeightGradients(lanes, micro_batches, lanes - 1);
  schedule.kind = "zb-h1";
  return schedule;
}

Schedule ZeroBubbleH2(int lanes, int micro_batches) {
  Schedule schedule = LaggingWeightGradients(lanes, micro_batches, 2 * lanes - 2);
  schedule.kind = "zb-h2";
  return schedule;
}

}  // namespace penstock
