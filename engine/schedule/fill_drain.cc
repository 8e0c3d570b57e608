// gpipe and looped-bfs: every forward, then every backward, one chunk after the other.
//
// Sources: Huang et al., "GPipe", 2019; with several chunks Lamy-Poirier, "Breadth-first pipeline parallelism", 2022.
// Both run backward in descending micro-batch order; here it is ascending, so that gradients accumulate in the same
// order in every kind. Makespan and peaks are the same.

#include "engine/schedule/generators.h"
#include "engine/schedule/rank_writer.h"

namespace penstock {

Schedule FillDrain(int ranks, int microbatches) {
  Schedule schedule = LoopedBreadthFirst(ranks, microbatches, 1);
  schedule.kind = "gpipe";
  return schedule;
}

Schedule LoopedBreadthFirst(int ranks, int microbatches, int chunks) {
  Schedule schedule = EmptySchedule("looped-bfs", ranks, chunks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter list(&schedule, Placement::kLooped, rank);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = 0; i < microbatches; ++i) list.Forward(chunk);
    }
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int i = 0; i < microbatches; ++i) list.Backward(chunk);
    }
  }
  return schedule;
}

}  // namespace penstock
