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
int Recomputed(const ScheduleKind& kind, int microbatches, RecomputeMode mode) {
  if (!kind.trains || mode == RecomputeMode::kNever || mode == RecomputeMode::kSkipAdjacent) return 0;
  return mode == RecomputeMode::kAlways ? microbatches : microbatches - 1;
}

}  // namespace

Ticks LowerBound(const ScheduleRequest& request, const ScheduleCosts& costs, RecomputeMode recompute) {
  const auto kind = KindOf(request);
  PENSTOCK_CHECK(kind.ok());
  const std::vector<int> rank_of = RanksOfStages(kind->placement, request.ranks, request.chunks);
  const int stages = static_cast<int>(rank_of.size());
  PENSTOCK_CHECK(static_cast<int>(costs.stages.size()) == stages);
  std::vector<StageTimes> times;
  for (const StageCosts& stage : costs.stages) times.push_back(TimesOf(stage, *kind));

  // Times from the first stage to each, from each back to the first, and of all after it.
  std::vector<Ticks> before(stages, 0), back(stages, 0), after(stages, 0);
  for (int stage = 1; stage < stages; ++stage) {
    const Ticks hop = rank_of[stage - 1] == rank_of[stage] ? 0 : costs.hop;
    before[stage] = before[stage - 1] + times[stage - 1].forward + hop;
    back[stage] = back[stage - 1] + times[stage - 1].backward + hop;
  }
  const int last = stages - 1;
  for (int stage = 0; stage < stages; ++stage) {
    after[stage] = before[last] + times[last].forward - before[stage] - times[stage].forward;
  }

  Ticks bound = before[last] + times[last].forward;  // the way of one micro-batch
  if (kind->trains) bound += back[last] + times[last].backward - times[0].backward + times[0].gradients;

  const Ticks again = Recomputed(*kind, request.microbatches, recompute);
  std::vector<Ticks> work(request.ranks, 0);
  std::vector<int> first(request.ranks, stages), end(request.ranks, 0);
  for (int stage = 0; stage < stages; ++stage) {
    const int rank = rank_of[stage];
    work[rank] +=
        request.microbatches * (times[stage].forward + times[stage].gradients) + again * costs.stages[stage].recompute;
    first[rank] = std::min(first[rank], stage);
    end[rank] = std::max(end[rank], stage);
  }
  for (int rank = 0; rank < request.ranks; ++rank) {
    Ticks tail = 0;
    if (!kind->trains) tail = after[end[rank]];
    if (kind->trains && !kind->splits) tail = back[first[rank]];
    bound = std::max(bound, before[first[rank]] + work[rank] + tail);
  }
  return bound;
}

}  // namespace penstock
