#pragma once

// Corrects a search: the stages of the best few plans that it lists are measured, and the best by that comes first.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_request.h"
#include "engine/plan/search.h"
#include "engine/plan/size_profile.h"

namespace penstock {

// The plan with its stages' costs as they are where they would stand, and predicted anew.
using MeasureStages = std::function<absl::StatusOr<Plan>(Plan)>;

// Costs of layers, measured one by one, tell good plans from bad ones. They do not tell the best from the next: a layer
// by itself keeps its weights in the caches, and many small errors add up along a stage.
//
// Model:     measures the candidates that are predicted within kWorthConfirming of the first, but at most kMaxMeasured
//            sets of stages: candidates with the same cut and rows share one. Those are listed first, by their new
//            makespan, the others after them as they were. One that can't be measured is refused.
// Returns:   the plans of those that were confirmed, in their order, with what was measured.
// Fails:     as PlanOf.
absl::StatusOr<std::vector<Plan>> ConfirmBest(const PlanRequest& request, const SizeProfile& profile,
                                              const MeasureStages& measure, const std::function<bool()>& out_of_time,
                                              PlanSearch& search);

inline constexpr double kWorthConfirming = 1.12;
inline constexpr int kMaxMeasured = 6;

}  // namespace penstock
