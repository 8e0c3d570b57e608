// forward-only: inference, and the forward half of a graph that is kept. One chunk after the other.

#include "engine/schedule/generators.h"
#include "engine/schedule/rank_writer.h"

namespace penstock {

Schedule ForwardOnly(int ranks, int microbatches, int chunks, Placement placement) {
  Schedule schedule = EmptySchedule("forward-only", ranks, chunks, microbatches);
  for (int rank = 0; rank < ranks; ++rank) {
    RankWriter list(&schedule, placement, rank);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = 0; i < microbatches; ++i) list.Forward(chunk);
    }
  }
  return schedule;
}

}  // namespace penstock
