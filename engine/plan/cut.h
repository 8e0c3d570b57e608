#pragma once

// Which layers stand on which stage, which stage on which device, and why.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/device_cut.h"
#include "engine/plan/plan_request.h"
#include "engine/plan/profile.h"

namespace penstock {

// Stages in order; the reasons are sentences for people.
struct Cut {
  std::vector<DeviceStage> stages;
  std::vector<std::string> why;
};

// The cut that the specification gives by a balance or by its layers' devices; without stages if costs must decide.
// Checks everything of spec.cut that needs no measurement.
//
// Fails:     SPEC_INVALID naming spec.cut..., spec.model.layers[i].device or spec.devices; OUT_OF_RANGE where devices
//            or ranks are too few.
absl::StatusOr<Cut> GivenCut(const PlanRequest& request);

// The same, and else by the layers' costs.
//
// Fails:     as GivenCut.
absl::StatusOr<Cut> FindCut(const PlanRequest& request, const std::vector<LayerProfile>& profile);

// Layers per stage by the layers' costs.
struct CostBalance {
  std::vector<int> balance;
  bool limits_decide = false;  // memory limits do not allow the one by cost alone
  bool moved = false;          // by a layer here or there, for the sake of the step as a whole
};

// So many stages by cost. `within_limits`: as far as it can, within the devices' memory limits.
//
// Fails:     SPEC_INVALID of spec.cut.stages.
absl::StatusOr<CostBalance> BalanceByCost(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                                          int stages, bool within_limits);

// The same, placed and explained.
absl::StatusOr<Cut> CutByCost(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                              const CostBalance& found);

// The skips that cross between stages that begin at these layers, with the bytes of one micro-batch.
std::vector<SkipRoute> RoutesOf(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                                const std::vector<int>& first_layers);

// What the cut weighs, per layer. Units: microseconds or bytes, as the specification says; 1 for the time of a layer
// that could not be measured.
std::vector<double> CutCosts(const PlanRequest& request, const std::vector<LayerProfile>& profile);

}  // namespace penstock
