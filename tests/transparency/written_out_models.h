#pragma once

// The models that are written out, with the specification of each, and mini-batches for them.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/exec/pipeline_spec.h"
#include "tests/transparency/written_out_training.h"

namespace penstock::testing {

struct WrittenOutCase {
  std::string name;
  PipelineSpec spec;  // without cut, schedule and devices
  WrittenOutModel model = nullptr;
  int layers = 0;
  std::string input;     // what the pipeline calls it
  double tolerance = 0;  // of a difference, relative to the largest element of a tensor
  bool brief = false;    // one step: loss, gradient norm and then outputs are compared, weights are not
};

// mlp, gpt, a convolutional net with batch norm (running statistics by micro-batch and deferred), a U-Net, and a
// residual net with tied weights; in double precision, in single precision and under bf16 autocast.
std::vector<WrittenOutCase> WrittenOutCases();

// The mini-batch number `number`; depends on the model and the number only.
struct WrittenOutBatch {
  at::Tensor input;
  at::Tensor target;
};
WrittenOutBatch WrittenOutBatchOf(const WrittenOutCase& one, int number, int64_t rows);

}  // namespace penstock::testing
