#include "engine/schedule/lower_bound.h"

#include <algorithm>
#include <vector>

#include "engine/base/check.h"

namespace penstock {
namespace {

// The least that one micro-batch takes on one stage.
struct StageTimes {
  Ticks forward = 0;
  Ticks backward = 0;   // until the gradient for the stage before is there
  Ticks gradients = 0;  // until those of the parameters are there as well
};

StageTimes TimesOf(const StageCosts& costs, const ScheduleKind& kind) {
  if (!kind.trains) return {.forward = costs.forward};
  const Ticks halves = costs.input_gradient + costs.weight_gradient;
  const Ticks fused = costs.backward.value_or(halves);
  if (!kind.splits) return {costs.forward, fused, fused};
  return {costs.forward, std::min(costs.input_gradient, fused), std::min(halves, fused)};
}

// How many micro-batches are recomputed for certain.
int Recomputed(const ScheduleKind& kind, int micro_batches, RecomputeMode mode) {
  if (!kind.trains || mode == RecomputeMode::kNever || mode == RecomputeMode::kSkipAdjacent) return 0;
  return mode == RecomputeMode::kAlways ? micro_batches : micro_batches - 1;
}

}  // namespace

Ticks LowerBound(const ScheduleRequest& request, const ScheduleCosts& costs, RecomputeMode recompute) {
  const auto kind = KindOf(request);
  PENSTOCK_CHECK(kind.ok());
  const std::vector<int> lane_of = LanesOfStages(kind->placement, request.lanes, request.chunks);
  const int stages = static_cast<int>(lane_of.size());
  PENSTOCK_CHECK(static_cast<int>(costs.stages.size()) == stages);
  std::vector<StageTimes> times;
  for (const StageCosts& stage : costs.stages) times.push_back(TimesOf(stage, *kind));

  // Times from the first stage to each, from each back to the first, and of all after it.
  std::vector<Ticks> before(stages, 0), back(stages, 0), after(stages, 0);
  for (int stage = 1; stage < stages; ++stage) {
    const Ticks hop = lane_of[stage - 1] == lane_of[stage] ? 0 : costs.HopBetween(stage - 1, stage);
    before[stage] = before[stage - 1] + times[stage - 1].forward + hop;
    back[stage] = back[stage - 1] + times[stage - 1].backward + hop;
  }
  const int last = stages - 1;
  for (int stage = 0; stage < stages; ++stage) {
    after[stage] = before[last] + times[last].forward - before[stage] - times[stage].forward;
  }

  Ticks bound = before[last] + times[last].forward;  // the way of one micro-batch
  if (kind->trains) bound += back[last] + times[last].backward - times[0].backward + times[0].gradients;

  const Ticks again = Recomputed(*kind, request.micro_batches, recompute);
  std::vector<Ticks> work(request.lanes, 0);
  std::vector<int> first(request.lanes, stages), end(request.lanes, 0);
  for (int stage = 0; stage < stages; ++stage) {
    const int lane = lane_of[stage];
    work[lane] +=
        request.micro_batches * (times[stage].forward + times[stage].gradients) + again * costs.stages[stage].recompute;
    first[lane] = std::min(first[lane], stage);
    end[lane] = std::max(end[lane], stage);
  }
  for (int lane = 0; lane < request.lanes; ++lane) {
    Ticks tail = 0;
    if (!kind->trains) tail = after[end[lane]];
    if (kind->trains && !kind->splits) tail = back[first[lane]];
    bound = std::max(bound, before[first[lane]] + work[lane] + tail);
  }
  return bound;
}

}  // namespace penstock
