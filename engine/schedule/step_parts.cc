// Parts of a step that a client calls one by one.

#include "engine/schedule/generators.h"
#include "engine/schedule/lane_writer.h"

namespace penstock {

Schedule BackwardOnly(int lanes, int micro_batches, int chunks, Placement placement) {
  Schedule schedule = EmptySchedule("backward-only", lanes, chunks, micro_batches);
  for (int lane = 0; lane < lanes; ++lane) {
    LaneWriter list(&schedule, placement, lane);
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int i = 0; i < micro_batches; ++i) list.Backward(chunk);
    }
  }
  return schedule;
}

Schedule NoMicroBatches(int lanes, int chunks) { return EmptySchedule("optimizer-only", lanes, chunks, 0); }

}  // namespace penstock
