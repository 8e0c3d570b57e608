#pragma once

// One way to run a model, with what is predicted of it; and how that is predicted.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/cut.h"
#include "engine/plan/layer_costs.h"
#include "engine/plan/memory.h"
#include "engine/plan/plan_request.h"
#include "engine/schedule/virtual_time.h"

namespace penstock {

struct PlanCandidate {
  ScheduleSpec schedule;         // fully decided
  int64_t micro_batch_rows = 0;  // 0: as the profile
  CostBalance cut;
  double makespan_seconds = 0;  // of one step without its optimizer
  double bubble = 0;            // share of the lanes' time
  std::vector<DeviceNeed> memory;
  int64_t messages = 0;    // per step
  bool confirmed = false;  // makespan and bubble follow from measured stages (confirm.h), not from measured layers
  std::optional<double> rehearsed_seconds;  // of a step that was run (rehearse.h)

  int64_t peak_bytes() const;  // of the device that needs most
};

// A candidate as it was simulated.
struct PredictedPlan {
  PlanCandidate candidate;
  Ticks makespan = 0;
};

// A schedule and a cut, of which nothing is predicted yet.
struct PlanChoice {
  const PlanRequest& request;  // its schedule is fully decided
  const LayerCosts& costs;     // of micro-batches with so many rows
  int64_t micro_batch_rows = 0;
  const CostBalance& cut;
  bool cut_is_given = false;  // by the request, which then says where stages stand, too
};

// Simulates one step and counts the memory of each device. Nothing if the step takes `limit` or longer: where a lower
// bound says so, it is not simulated. Adds to `work` the actions that are simulated, as SearchBudget counts them.
//
// Fails:     as CheckRequest, GivenCut and PlaceOnLanes, where there is no such schedule; PLAN_DOES_NOT_FIT as
//            CheckNeeds.
absl::StatusOr<std::optional<PredictedPlan>> PredictChoice(const PlanChoice& choice, Ticks limit, int64_t& work);

}  // namespace penstock
