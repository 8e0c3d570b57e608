#pragma once

#include <string>

#include "engine/exec/pipeline.h"

namespace penstock::bench {

// A workload that pipelines are compared on. `mlp`: 16 x (Linear(1024, 1024), ReLU), batch 256, mean squared error.
// `gpt`: a byte-level decoder with 8 blocks, width 256, 4 heads, sequence 128, batch 32, cross-entropy. And the
// ancestors' image models, small enough for two cores: `resnet`: ResNet-101, width 16, batch 32 of 64x64. `unet`: U-Net
// (3, 16), batch 16 of 64x64, mean squared error. `amoebanet`: AmoebaNet-D (6, 32), batch 32 of 64x64. `uneven`: an mlp
// of 12 layers whose widths go from 256 to 2048 and back, batch 128.
struct Workload {
  PipelineSpec spec;
  NamedTensors inputs;
  at::Tensor target;
  int64_t rows = 0;
};

std::vector<std::string> WorkloadNames();

// `name` must be one of them.
Workload MakeWorkload(const std::string& name, int stages, int micro_batches, CheckpointMode checkpoint);

// An exported program on so many rows of random numbers (of zeros, where it takes whole numbers): mean squared error of
// its first output. Ends the process with a message where that cannot be.
Workload ProgramWorkload(const std::string& file, int64_t rows, int stages, int micro_batches,
                         CheckpointMode checkpoint);

}  // namespace penstock::bench
