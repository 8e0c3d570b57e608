#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/ids.h"
#include "engine/schedule/verify.h"

namespace penstock {

// What a run is, in plain values that have a form on a wire: all that its lanes must agree on, wherever they are. The
// lists are those of the plan for `purpose` and `micro_batches`; values (inputs, targets, gradients) come by
// themselves.
struct RunSpec {
  int64_t id = 0;
  SchedulePurpose purpose = SchedulePurpose::kForwardOnly;
  int micro_batches = 0;
  std::vector<int64_t> rows = {};  // by micro-batch; empty for an optimizer step alone
  uint64_t seed = 0;
  StepId step = {};
  int micro_batch_base = 0;  // of the first micro-batch, within the step
  bool inference = false;
  bool training = false;    // dropout on
  bool keep_graph = false;  // passes stay for a later Backward
  bool retain_graph = false;
  bool accumulating = false;  // gradients of earlier contributions are there
  int64_t graph = 0;          // of a Backward: the run of its Forward
  bool keep_outputs = false;
  bool input_gradients = false;  // of the whole model's inputs

  // Whether an optimizer step ends it.
  bool Steps() const { return purpose == SchedulePurpose::kTrainingStep || purpose == SchedulePurpose::kOptimizerOnly; }
};

}  // namespace penstock
