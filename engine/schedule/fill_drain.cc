// gpipe and looped-bfs: every forward, then every backward, one chunk after the other.
//
// Sources: Huang et al., "GPipe", 2019; with several chunks Lamy-Poirier, "Breadth-first pipeline parallelism", 2022.
// Both run backward in descending micro-batch order; here it is ascending, so that gradients accumulate in the same
// order in every kind. Makespan and peaks are the same.

#include "engine/schedule/generators.h"
#include "engine/schedule/lane_writer.h"

namespace penstock {

Schedule FillDrain(int lanes, int micro_batches) {
  Schedule schedule = LoopedBreadthFirst(lanes, micro_batches, 1);
  schedule.kind = "gpipe";
  return schedule;
}

Schedule LoopedBreadthFirst(int lanes, int micro_batches, int chunks) {
  Schedule schedule = EmptySchedule("looped-bfs", lanes, chunks, micro_batches);
  for (int lane = 0; lane < lanes; ++lane) {
    LaneWriter list(&schedule, Placement::kLooped, lane);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = 0; i < micro_batches; ++i) list.Forward(chunk);
    }
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int i = 0; i < micro_batches; ++i) list.Backward(chunk);
    }
  }
  return schedule;
}

}  // namespace penstock
