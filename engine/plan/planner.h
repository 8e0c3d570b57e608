#pragma once

// From a specification to a plan: cut, memory, predictions.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/device/device.h"
#include "engine/model/model_spec.h"
#include "engine/plan/plan.h"
#include "engine/plan/profile.h"
#include "engine/schedule/recompute_pass.h"

namespace penstock {

// What the planner decides about.
struct PlanRequest {
  std::vector<LayerSpec> layers;  // of the whole model, named
  CutSpec cut;
  std::vector<Device> devices;  // that may be used, in order; stage k goes to devices[k % size]
  ScheduleSpec schedule;
  std::vector<int64_t> parameter_bytes;  // per layer, known before anything is measured; empty: not checked beforehand
  double optimizer_state_ratio = 2;      // bytes of optimizer state per byte of parameters
};

// Profiles the layers, cuts them (exact min-max of measured time, or the balance as given), checks memory, predicts
// makespan and bubble by the simulator.
//
// Fails:     SPEC_INVALID naming cut, schedule or layer; PLAN_DOES_NOT_FIT naming the device, its limit, and the largest
//            class of bytes.
absl::StatusOr<Plan> MakePlan(const PlanRequest& request, const ProfileOptions& options, Clock* clock);

// The same from given costs: pure.
absl::StatusOr<Plan> PlanFromProfile(const PlanRequest& request, const std::vector<LayerProfile>& profile);

// Fills in makespan, bubbles and peaks from the stages' costs, by the simulator.
absl::Status PredictPlan(Plan& plan);

// The mode as the schedule's recompute pass knows it.
RecomputeMode ToRecomputeMode(CheckpointMode mode);

std::string_view CheckpointModeName(CheckpointMode mode);  // always, except_last, never

}  // namespace penstock
