// forward-only: inference, and the forward half of a graph that is kept. One chunk after the other.

#include "engine/schedule/generators.h"
#include "engine/schedule/lane_writer.h"

namespace penstock {

Schedule ForwardOnly(int lanes, int micro_batches, int chunks, Placement placement) {
  Schedule schedule = EmptySchedule("forward-only", lanes, chunks, micro_batches);
  for (int lane = 0; lane < lanes; ++lane) {
    LaneWriter list(&schedule, placement, lane);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = 0; i < micro_batches; ++i) list.Forward(chunk);
    }
  }
  return schedule;
}

}  // namespace penstock
