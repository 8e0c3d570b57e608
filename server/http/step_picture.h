#pragma once

// The last step of a pipeline as its lanes' rings have it, and how it is drawn.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/observe/metrics.h"
#include "server/http/document.h"

namespace penstock {

// What a lane did from one instant to another. Times are nanoseconds since the step's begin.
struct StepSpan {
  int64_t begin = 0;
  int64_t end = 0;
  StageState state = StageState::kHost;
  std::string label = {};  // of an action: "2F0"; empty: the lane waited
};

struct StepLane {
  std::string device;
  std::string layers;
  std::vector<StepSpan> actions;  // what ran, in order
  std::vector<StepSpan> waits;    // every other state, in order
};

struct StepPicture {
  int64_t step = 0;
  int micro_batches = 0;
  int64_t makespan = 0;
  int64_t ideal_finish = 0;  // of the same work on equal stages
  double bubble = 0;         // measured: the share of all lanes' time without work
  std::vector<StepLane> lanes;
};

// The last training run that is whole. Nothing if none is in the last records of the rings.
std::optional<StepPicture> LastStep(const PipelineMetrics& pipeline);

// One row per lane, one rectangle per action, idle states below the line, the ideal finish marked; with what the
// colours mean. As SVG, as characters for a terminal, and as JSON.
Section DrawStep(const std::optional<StepPicture>& picture);

}  // namespace penstock
