#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_spec.h"
#include "engine/optim/optimizer_spec.h"
#include "engine/plan/plan.h"

namespace penstock {

// Everything a pipeline is made from. Two pipelines with equal specifications start from equal weights.
struct PipelineSpec {
  ModelSpec model;
  CutSpec cut;
  std::vector<std::string> devices;  // of lane k: devices[k], in turn if the server cuts; empty: all devices
  ScheduleSpec schedule;
  OptimizerSpec optimizer;
  LossSpec loss;  // the default; an empty name means none
  uint64_t seed = 0;
};

}  // namespace penstock
