#pragma once

// What the planner is asked.

#include <cstdint>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/link.h"
#include "engine/model/model_spec.h"
#include "engine/model/skip_spec.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_limits.h"
#include "engine/plan/profile.h"

namespace penstock {

// What the planner decides about.
struct PlanRequest {
  std::vector<LayerSpec> layers;  // of the whole model, named
  CutSpec cut;
  // That may be used, in order: lane k goes to devices[k % size], unless its layers name another of them.
  std::vector<Device> devices;
  bool devices_named = false;  // the client named them: an explicit balance needs one for each of its stages then
  ScheduleSpec schedule;
  std::vector<int64_t> parameter_bytes;  // per layer, known before anything is measured; empty: not checked beforehand
  double optimizer_state_ratio = 2;      // bytes of optimizer state per byte of parameters
  std::vector<SkipDeclaration> skips = {};  // per layer, checked to match; empty: none
  HandedValues handed = {};  // what may go straight to its stage, or leave it; where all are of one process
  ModelSettings settings = {};
  PlanLimits limits = {};        // what of `schedule` is open
  double bytes_per_second = 0;   // between two stages; 0: so many that it does not count
  std::vector<Link> links = {};  // between ranks; empty: they do not count
};

}  // namespace penstock
