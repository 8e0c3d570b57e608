#pragma once

#include <string>

#include "engine/exec/pipeline.h"

namespace penstock::bench {

// One of the two workloads that every pipeline is compared on: `mlp`, 16 x (Linear(1024, 1024), ReLU), batch 256, mean
// squared error; `gpt`, a byte-level decoder with 8 blocks, width 256, 4 heads, sequence 128, batch 32, cross-entropy.
struct Workload {
  PipelineSpec spec;
  NamedTensors inputs;
  at::Tensor target;
  int64_t rows = 0;
};

// `name` must be mlp or gpt.
Workload MakeWorkload(const std::string& name, int stages, int micro_batches, CheckpointMode checkpoint);

}  // namespace penstock::bench
