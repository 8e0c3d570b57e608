// Parts of a step that a client calls one by one.

#include "engine/schedule/generators.h"
#include "engine/schedule/rank_writer.h"

namespace penstock {

Schedule BackwardOnly(int ranks, int microbatches, int chunks, Placement placement) {
  Schedule schedule = EmptySchedule("backward-only", ranks, chunks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter list(&schedule, placement, rank);
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int i = 0; i < microbatches; ++i) list.Backward(chunk);
    }
  }
  return schedule;
}

Schedule NoMicrobatches(int ranks, int chunks) { return EmptySchedule("optimizer-only", ranks, chunks, 0); }

}  // namespace penstock
