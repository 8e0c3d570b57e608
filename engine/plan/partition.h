#pragma once

// Cuts a row of layers into consecutive stages.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// A value that one layer hands to a later one, past those between.
struct SkipBytes {
  int stashed_by = 0;
  int popped_by = 0;
  int64_t bytes = 0;
};

// What the cut looks at. Every vector but `skips` has one entry per layer.
//
// Units:     costs in any unit; boundary bytes are what layer i hands to layer i+1.
struct PartitionInput {
  std::vector<double> costs;
  std::vector<int64_t> boundary_bytes;
  std::vector<SkipBytes> skips = {};
  double cost_per_byte = 0;  // of what enters a stage: boundary bytes and skips from before it
  // Instead, where it depends on the stage that the bytes enter; also of none. Empty: `cost_per_byte` counts.
  std::function<double(int stage, int64_t bytes)> cost_of_entering = {};
  // Whether layers begin ... end-1 fit where that stage stands; empty: all fit. If no cut fits, the result ignores it.
  std::function<bool(int stage, int begin, int end)> fits = {};
};

// Layers per stage with the least possible cost of the most expensive stage; no stage is empty. Among equal
// bottlenecks, the least sum of bytes that enter stages, then the earliest cuts. Exact dynamic program over (stages,
// layers), O(n^2 k), from the last layer backwards: least[k][j] = min over i of max(cost(j..i-1), least[k-1][i]); a
// second one finds the fewest bytes among ranges that stay within that bottleneck.
//
// Fails:     INVALID_ARGUMENT / SPEC_INVALID of field spec.cut.stages if there are fewer layers than stages, or none.
absl::StatusOr<std::vector<int>> PartitionExactly(const PartitionInput& input, int stages);

}  // namespace penstock
