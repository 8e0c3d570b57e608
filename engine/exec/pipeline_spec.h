#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/model_spec.h"
#include "engine/optim/optimizer_spec.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_limits.h"
#include "engine/plan/planning_sample.h"

namespace penstock {

// How inference runs beside training.
struct BubbleFillingSpec {
  bool enabled = true;  // false: inference waits for the end of a training run; what waited goes before the next one
  double inference_share = 0.02;  // of the time of training that inference which found no gap may take, 0 to 1; 0: none
  double max_wait_seconds = 0;    // until it may; 0: as long as it takes alone; without effect if not enabled
};

// Requests of inference that run as one, row behind row. Their outputs are then equal to a rounding, not bit for bit, to
// those of runs by themselves, as the sizes of matrices differ.
struct DynamicBatchingSpec {
  int64_t max_rows = 64;         // of a batch; a request with more is one by itself
  int64_t micro_batch_rows = 0;  // that a batch is split into; 0: max_rows over the number of lanes, rounded up
  // That a request waits for others where it could run; unset: as engine/serve/inference_queue.h says.
  std::optional<double> max_delay_seconds = {};
};

// Everything a pipeline is made from. Two pipelines with equal specifications start from equal weights.
struct PipelineSpec {
  ModelSpec model;
  CutSpec cut;
  std::vector<std::string> devices;  // of lane k: devices[k], in turn if the server cuts; empty: all devices
  ScheduleSpec schedule;
  PlanLimits limits = {};  // what of the schedule is the planner's choice
  OptimizerSpec optimizer;
  LossSpec loss;  // the default; an empty name means none
  uint64_t seed = 0;
  BubbleFillingSpec bubble_filling;
  std::optional<DynamicBatchingSpec> batching = {};   // absent: each request of inference runs by itself
  std::shared_ptr<const PlanningSample> sample = {};  // measured with; not kept. Null: made-up values
};

}  // namespace penstock
