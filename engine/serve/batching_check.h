#pragma once

#include "absl/status/status.h"
#include "engine/exec/pipeline.h"

namespace penstock {

class Planning;

// Whether requests of a model may run as rows of one batch: two made-up rows are run by themselves and together, and must
// give the same outputs up to a rounding, with one row each. Of outputs that are no floating-point numbers, only the rows
// are looked at. What a model refuses, or whose inputs no signature tells, can't be checked: then batches are parted, or
// not, when they come. That the number of rows is open was seen before there were stages (CheckSpecification). Blocks for
// three inferences, the last of which ends soon once `planning` is unwanted; before any other call.
//
// Fails:     CANCELLED / WORK_CANCELLED where it is unwanted; INVALID_ARGUMENT / SPEC_INVALID of `dynamic_batching`, naming the input or output; HOST_MEMORY; RANK_LOST.
absl::Status CheckBatching(Pipeline* pipeline, const Planning& planning);

}  // namespace penstock
