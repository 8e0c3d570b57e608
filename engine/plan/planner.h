#pragma once

// From a specification to a plan: cut, memory, predictions.

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/plan/confirm.h"
#include "engine/plan/plan.h"
#include "engine/plan/plan_request.h"
#include "engine/plan/planning.h"
#include "engine/plan/profile.h"
#include "engine/plan/rehearse.h"
#include "engine/plan/search.h"
#include "engine/plan/size_profile.h"
#include "engine/schedule/build.h"
#include "engine/schedule/recompute_pass.h"

namespace penstock {

// How a search tries its best plans where they would stand; what is empty is not tried.
struct PlanTrials {
  MeasureStages measure;  // confirm.h
  RunSteps run;           // rehearse.h
};

// Checks the number of micro-batches, then the kind: the planner's part of the checks that come before all checks of
// the model.
//
// Fails:     SPEC_INVALID of spec.schedule.micro_batches or spec.schedule.kind.
absl::Status CheckSchedule(const ScheduleSpec& schedule);

// Profiles the layers, searches for what the schedule leaves open (search.h), cuts the layers (cut.h), checks memory,
// predicts makespan and bubble by the simulator. Where nothing could be measured, open choices are as `schedule` says.
// When the time of options.planning is over, it takes the best that it has found.
//
// Fails:     SPEC_INVALID naming cut, schedule, devices or layer; PLAN_DOES_NOT_FIT naming the device, its limit, and
//            the largest class of bytes; WORK_CANCELLED once options.planning says that it is not wanted.
absl::StatusOr<Plan> MakePlan(const PlanRequest& request, const ProfileOptions& options, Clock* clock,
                              const PlanTrials& trials = {});

// The same from given costs: pure.
absl::StatusOr<Plan> PlanFromProfile(const PlanRequest& request, const std::vector<LayerProfile>& profile);

// Measures the layers for MakePlan, after everything that needs no measurement was checked. Ends early when the time is
// over, but measures at least one size.
//
// Fails:     as MakePlan.
absl::StatusOr<SizeProfile> ProfileSizes(const PlanRequest& request, const ProfileOptions& options, Clock* clock);

// The whole plan of what a search of the same request and profile has found.
//
// Fails:     as MakePlan.
absl::StatusOr<Plan> PlanOf(const PlanRequest& request, const SizeProfile& profile, const PlanCandidate& candidate);

// SearchPlans with the whole plan of the best candidate. Where something is left open, the best few are tried.
//
// Fails:     as MakePlan, but finding no plan is no failure.
absl::StatusOr<PlanSearch> PlanBySearch(const PlanRequest& request, const SizeProfile& profile,
                                        Planning* planning = EndlessPlanning(), const PlanTrials& trials = {});

// Whether the plan's schedule splits any backward; also if only measured costs could tell.
bool SplitsBackward(const Plan& plan);

// Fills in makespan, bubbles and peaks from the stages' costs, by the simulator.
//
// Fails:     SPEC_INVALID of a field of spec.schedule where there is no such schedule.
absl::Status PredictPlan(Plan& plan);

// What the lists of so many stages are built from, with equal costs and no skips; as one mini-batch of the plan.
BuildRequest BuildRequestOf(const ScheduleSpec& schedule, int stages);

// The same with the plan's costs and skips.
BuildRequest BuildRequestOf(const Plan& plan);

// What the actions of the plan's stages cost, in nanoseconds.
ScheduleCosts CostsOf(const Plan& plan);

// How many lanes the stages stand on.
int LaneCount(const Plan& plan);

// The mode as the schedule's recompute pass knows it.
RecomputeMode ToRecomputeMode(CheckpointMode mode);

std::string_view CheckpointModeName(CheckpointMode mode);  // always, except_last, never, skip_adjacent

}  // namespace penstock
