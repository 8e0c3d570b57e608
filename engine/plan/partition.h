#pragma once

// Cuts a row of layers into consecutive stages.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// What the cut looks at. Every vector has one entry per layer.
//
// Units:     costs in any unit of time; boundary bytes are what layer i hands to layer i+1.
struct PartitionInput {
  std::vector<double> costs;
  std::vector<int64_t> boundary_bytes;
};

// Layers per stage with the least possible cost of the most expensive stage; no stage is empty. Among equal bottlenecks,
// the least sum of boundary bytes, then the earliest cuts. Exact dynamic program over (stages, layers), O(n^2 k):
// best[k][i] = min over j of max(best[k-1][j], cost(j+1..i)).
//
// Fails:     INVALID_ARGUMENT / SPEC_INVALID of field spec.cut.stages if there are fewer layers than stages, or none.
absl::StatusOr<std::vector<int>> PartitionExactly(const PartitionInput& input, int stages);

}  // namespace penstock
