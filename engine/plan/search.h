#pragma once

// Finds the best schedule and cut for a model before anything runs.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/candidate.h"
#include "engine/plan/plan_request.h"
#include "engine/plan/size_profile.h"

namespace penstock {

struct RefusedPlan {
  ScheduleSpec schedule;
  absl::Status why;
};

// What a search has found.
//
// Model:     candidates best first: those that were run, by their steps (rehearse.h); then by makespan, counted from
//            the best in quanta of kEqualMakespan of it, for no measurement is more exact; then by peak memory, then
//            messages, then the order of the search space. At most kMaxCandidates; `refused` as many of those that
//            would have been good enough, in the order they were met.
struct PlanSearch {
  std::vector<PlanCandidate> candidates;
  std::vector<RefusedPlan> refused;
  int considered = 0;        // schedules
  int skipped = 0;           // of these, those that would have taken a quantum longer than the worst of kMaxCandidates
  bool complete = true;      // false: the time was up, or the most work was done
  std::optional<Plan> plan;  // all of the best, where it was asked for (planner.h)

  // Why there is no candidate: PLAN_DOES_NOT_FIT as CheckNeeds, where memory is the reason; else what was refused
  // first.
  absl::Status WhyNone() const;
  // A sentence on the choice, for people. There is a candidate.
  std::string Reason() const;
};

inline constexpr double kEqualMakespan = 0.005;

// Units:     `max_work` in simulated actions: the same result on every machine.
struct SearchBudget {
  int64_t max_work = 6'000'000;
  std::function<bool()> out_of_time = {};  // ends the search once it has something; empty: never
};

// Tries every schedule that the request leaves open, in the order of their lower bounds: cuts exactly for it,
// simulates, and counts the memory of each device; where that is too little, it cuts within the limits, then tries
// modes of recomputation if they are open. At last it tries cuts one layer away from the best few, for bottleneck and
// makespan do not always agree.
//
// Where nothing could be measured, nothing is open. Pure: equal requests and profiles have equal results, unless time
// runs out.
//
// Fails:     SPEC_INVALID of the limits or the cut. That nothing is possible is no failure: there are no candidates
//            then.
absl::StatusOr<PlanSearch> SearchPlans(const PlanRequest& request, const SizeProfile& profile,
                                       const SearchBudget& budget);

// "interleaved-1f1b with 2 chunks, 8 micro-batches, checkpoint never".
std::string DescribeSchedule(const ScheduleSpec& schedule);

}  // namespace penstock
