#pragma once

// What calls since the last step have left in a pipeline, but for open graphs.

#include "engine/tensor/named_tensors.h"

namespace penstock {

// A copy of it, for the same pipeline with the same weights: what comes after has the bits that it would have had.
struct Accumulation {
  bool open = false;          // gradients wait for their step
  int next_micro_batch = 0;   // where draws go on
  bool loss_finite = true;    // of all contributions
  NamedTensors tensors = {};  // gradients, and what layers have noted; names that only the pipeline reads

  // Whether draws begin anew, and nothing waits.
  bool none() const { return !open && next_micro_batch == 0; }
};

}  // namespace penstock
