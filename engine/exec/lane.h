#pragma once

#include <vector>

#include "engine/base/clock.h"
#include "engine/exec/lane_state.h"
#include "engine/exec/lane_timeline.h"
#include "engine/exec/stage.h"
#include "engine/observe/metrics.h"
#include "engine/transport/transport.h"

namespace penstock {

// A worker on one device: its stages, clocks and counters, and what it needs to run lists of actions.
struct Lane {
  int index = 0;                   // in the pipeline: its list is schedule.lanes[index]
  std::vector<Stage*> stages;      // its chunks, in model order
  Transport* transport = nullptr;  // set before its first run
  LaneMetrics* metrics = nullptr;
  DeviceStreams* streams = nullptr;
  LaneState state;
  LaneTimeline timeline;
  Clock* clock = nullptr;
  std::vector<int> lane_of;                // by stage of the pipeline
  std::vector<double> stash_bytes_of_row;  // by chunk: what a forward keeps, as profiled

  // Counts the gradients, and the copies for an undo, that its stages hold now. On the thread that may touch them.
  void CountGradients();

  Lane(int index, std::vector<Stage*> stages, LaneMetrics* metrics, DeviceStreams* streams, Clock* clock)
      : index(index),
        stages(std::move(stages)),
        metrics(metrics),
        streams(streams),
        state(&metrics->state, clock),
        timeline(&state, streams, clock),
        clock(clock) {}
};

}  // namespace penstock
