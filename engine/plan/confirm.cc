#include "engine/plan/confirm.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/plan/planner.h"

namespace penstock {
namespace {

// What stages cost depends on: their first layers, their lanes' number, the rows, and whether halves were measured.
using StageSet = std::tuple<std::vector<int>, int, int64_t, bool>;

StageSet StagesOf(const Plan& plan) {
  std::vector<int> first_layers;
  for (const StagePlan& stage : plan.stages) first_layers.push_back(stage.first_layer);
  return {std::move(first_layers), LaneCount(plan), plan.micro_batch_rows, SplitsBackward(plan)};
}

void TakeCosts(const Plan& measured, Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    StagePlan& to = plan.stages[s];
    const StagePlan& from = measured.stages[s];
    to.forward_seconds = from.forward_seconds;
    to.backward_seconds = from.backward_seconds;
    to.input_gradient_seconds = from.input_gradient_seconds;
    to.weight_gradient_seconds = from.weight_gradient_seconds;
    to.recompute_seconds = from.recompute_seconds;
  }
}

}  // namespace

absl::StatusOr<std::vector<Plan>> ConfirmBest(const PlanRequest& request, const SizeProfile& profile,
                                              const MeasureStages& measure, const std::function<bool()>& out_of_time,
                                              PlanSearch& search) {
  std::vector<Plan> plans;
  if (search.candidates.empty()) return plans;
  struct Confirmed {
    PlanCandidate candidate;
    Plan plan;
  };
  std::vector<Confirmed> confirmed;
  std::vector<PlanCandidate> others;
  std::map<StageSet, Plan> measured;
  const double worth = search.candidates.front().makespan_seconds * kWorthConfirming;
  for (PlanCandidate& candidate : search.candidates) {
    const bool late = out_of_time && out_of_time();
    if (late) search.complete = false;
    if (late || candidate.makespan_seconds > worth) {
      others.push_back(std::move(candidate));
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(Plan plan, PlanOf(request, profile, candidate));
    const StageSet stages = StagesOf(plan);
    auto known = measured.find(stages);
    if (known == measured.end() && measured.size() == kMaxMeasured) {
      others.push_back(std::move(candidate));
      continue;
    }
    if (known == measured.end()) {
      absl::StatusOr<Plan> now = measure(plan);
      if (!now.ok()) {
        search.refused.push_back({candidate.schedule, now.status()});
        continue;
      }
      known = measured.emplace(stages, *std::move(now)).first;
    }
    TakeCosts(known->second, plan);
    PENSTOCK_RETURN_IF_ERROR(PredictPlan(plan));
    candidate.makespan_seconds = plan.makespan_seconds;
    candidate.bubble = plan.predicted_bubble;
    candidate.confirmed = true;
    confirmed.push_back({std::move(candidate), std::move(plan)});
  }
  std::stable_sort(confirmed.begin(), confirmed.end(), [](const Confirmed& a, const Confirmed& b) {
    return a.candidate.makespan_seconds < b.candidate.makespan_seconds;
  });
  search.candidates.clear();
  for (Confirmed& one : confirmed) {
    search.candidates.push_back(std::move(one.candidate));
    plans.push_back(std::move(one.plan));
  }
  for (PlanCandidate& other : others) search.candidates.push_back(std::move(other));
  return plans;
}

}  // namespace penstock
