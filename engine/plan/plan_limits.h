#pragma once

// What the planner may choose, and within which bounds.

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

// Which parts of a ScheduleSpec a specification leaves open. None: the schedule is as it says.
struct OpenChoices {
  bool kind = false;
  bool chunks = false;
  bool micro_batches = false;
  bool checkpoint = false;

  bool any() const { return kind || chunks || micro_batches || checkpoint; }
};

// Bounds of a search. They bind open choices only.
struct PlanLimits {
  OpenChoices open = {};
  std::vector<std::string> kinds = {};  // that may be chosen; empty: all that train
  int max_chunks = 4;                   // stages per lane
  std::vector<int> micro_batches = {};  // numbers that may be chosen; empty: powers of two
  int64_t mini_batch_rows = 0;   // of a step; 0: kDefaultMiniBatchRows where the number of micro-batches is open,
                                 // else a micro-batch has the rows of the profile
  double planning_seconds = 20;  // that measuring and choosing may take; 0: nothing is measured
};

inline constexpr int kMaxPlannedMicroBatches = 4096;
inline constexpr int64_t kDefaultMiniBatchRows = 32;
inline constexpr int kMaxCandidates = 20;  // that a search lists

}  // namespace penstock
