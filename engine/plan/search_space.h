#pragma once

// What there is to choose from: the schedules that a request leaves open, and the sizes of micro-batch that they need.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/plan/plan_request.h"

namespace penstock {

// Fails:     SPEC_INVALID of limits.kinds, limits.max_chunks, limits.micro_batches or limits.mini_batch_rows.
absl::Status CheckLimits(const PlanLimits& limits);

// Rows of a micro-batch where a mini-batch is cut into so many, the larger ones; 0: as the profile.
int64_t MicroBatchRows(const PlanLimits& limits, int micro_batches);

// The numbers of micro-batches to try: the given one, those of the limits, or powers of two that divide the rows of a
// mini-batch without leaving fewer.
std::vector<int> MicroBatchChoices(const PlanRequest& request);

// Rows of micro-batches to measure with, a few of those that will be asked for.
std::vector<int64_t> RowsToMeasure(const PlanRequest& request, int64_t profile_rows);

// Whether any choice splits backwards in two halves.
bool MayChooseSplit(const PlanRequest& request);

// Every choice, in a fixed order: simpler kinds, fewer chunks, fewer micro-batches first. Where the checkpoint mode is
// open it is kNever, which is never slower than the others. Some may turn out impossible. `lanes` is how many there
// would be.
std::vector<ScheduleSpec> SearchSpace(const PlanRequest& request, int lanes);

}  // namespace penstock
