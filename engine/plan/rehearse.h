#pragma once

// Decides among the best plans of a search by running them.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/plan.h"
#include "engine/plan/search.h"

namespace penstock {

using OutOfTime = std::function<bool()>;  // empty: never

// Seconds of each of some steps of a plan, without the optimizer. A pipeline is made for it and dropped again. Ends
// early when the time is up.
using RunSteps = std::function<absl::StatusOr<std::vector<double>>(const Plan&, const OutOfTime&)>;

// What a simulation from measured stages leaves out (caches that a neighbour's stage empties, the order in which memory
// is touched) differs by kind, by a few per cent: as much as the best plans differ from each other. Their steps tell.
//
// Model:     runs the first candidates, as many as are predicted within kWorthRehearsing of the first, but at most
//            kMaxRehearsed, and no more than `max_seconds` by their predictions; in rounds, the second backwards, so
//            that a machine that gets slower is unfair to none; in one round, where two would be too long for two
//            plans. They are listed by the median of their steps. One that can't be run on the made-up batch, or now,
//            stays as it was, behind those that ran. Time that is up ends it after the last whole round, and the search
//            is not complete.
// `plans`:   of the first candidates, in their order; reordered with them.
void RehearseBest(const RunSteps& run, double max_seconds, const OutOfTime& out_of_time, std::vector<Plan>& plans,
                  PlanSearch& search);

inline constexpr double kWorthRehearsing = 1.12;
inline constexpr int kMaxRehearsed = 6;
inline constexpr int kRehearsals = 2;
inline constexpr int kRehearsalSteps = 2;  // at least, after one that warms up

}  // namespace penstock
