#pragma once

// What stage executors tell the trace rings of their lanes: one call per action, message and run.

#include <cstdint>

#include "engine/exec/run.h"
#include "engine/observe/metrics.h"
#include "engine/schedule/action.h"
#include "engine/transport/transport.h"

namespace penstock {

// All of them: on the thread of the lane's device, without a lock, some 30 ns each. Times are monotonic nanoseconds.

// A compute action has ended. `part` of an optimizer step: 0 shares tied gradients, 1 takes norms, 2 applies.
void TraceAction(LaneMetrics& lane, const Run& run, const Action& action, int part, int64_t begin, int64_t end);

// A message was sent, or was there and has been taken in.
void TraceMessage(LaneMetrics& lane, const Run& run, const Action& action, const MessageKey& key, int64_t begin,
                  int64_t end);

// The lane has left a run whose list it got at `begin`.
void TraceLaneRun(LaneMetrics& lane, const Run& run, int64_t begin, int64_t end);

}  // namespace penstock
