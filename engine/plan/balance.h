#pragma once

// torchgpipe's way to cut costs into blocks, for reproducing its cuts.

#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// Lengths of `parts` consecutive blocks of `costs`, as torchgpipe v0.0.7 finds them
// (torchgpipe/balance/blockpartition.py, after Bárány and Grinberg, "Block partitions of sequences", arXiv 1308.2452):
// costs are normalised to [0, 1], and one element at a time moves between neighbours until the largest block exceeds
// the smallest by at most 1. That is no least bottleneck: 10,1,1,1,1,1 in two blocks gives 3,3. PartitionExactly
// (partition.h) finds the least.
//
// Where the ancestor returns an empty block, loses or repeats elements, or never returns, this returns the blocks of
// PartitionExactly. Blocks are never empty and hold every element once.
//
// Fails:     INVALID_ARGUMENT / SPEC_INVALID of field spec.cut.stages: no parts, or more parts than costs.
absl::StatusOr<std::vector<int>> BlockPartition(const std::vector<double>& costs, int parts);

}  // namespace penstock
