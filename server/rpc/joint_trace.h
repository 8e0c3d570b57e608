#pragma once

// What the lanes of a pipeline did, wherever they are.

#include <functional>
#include <string>

#include "engine/observe/metrics.h"
#include "engine/observe/trace_capture.h"
#include "server/rpc/service_environment.h"

namespace penstock {

// Memory that a joint trace takes while it is made: each record as it was taken, and in the part that was asked for.
inline constexpr int64_t kCopiesOfRecords = 2;

// Whether lanes of the pipeline are in other processes.
bool HasLanesElsewhere(const ServiceEnvironment& environment, const PipelineMetrics& metrics);

// Puts the lanes of other ranks into a capture of the pipeline's own ones. `done` is called once: at once where all lanes
// are here, else on any thread, when all have answered or their time is over.
void JoinLanes(const ServiceEnvironment& environment, const PipelineMetrics& metrics, TraceCapture own,
               std::function<void(TraceCapture)> done);

}  // namespace penstock
