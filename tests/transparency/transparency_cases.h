#pragma once

// The cases that every way to run a pipeline must pass: model, stages, schedule, checkpoint mode, micro-batches.

#include <string>
#include <vector>

#include "engine/exec/pipeline_spec.h"
#include "engine/tensor/named_tensors.h"
#include "tests/support/plain_reference.h"

namespace penstock::testing {

struct TransparencyCase {
  std::string model;  // mlp, gpt; both with dropout
  int stages = 1;
  std::string schedule;
  CheckpointMode checkpoint = CheckpointMode::kNever;
  int micro_batches = 1;
  int chunks = 1;
};

// Every combination of: both models; 1 to 4 stages; gpipe and 1f1b; always, except_last, never; m in {1, 3, 8}. And
// every other kind on two lanes, with as many chunks as it usually has.
std::vector<TransparencyCase> AllTransparencyCases();

// "gpt, 3 stages, 1f1b, except_last, m = 8"
std::string Describe(const TransparencyCase& one);

// The specification of a case: dropout 0.1, AdamW with warm-up and clipping, seed 11.
PipelineSpec SpecOf(const TransparencyCase& one);

// The mini-batch of a step: 8 rows; depends on model and step only.
struct TransparencyBatch {
  NamedTensors inputs;
  at::Tensor target;
};
TransparencyBatch BatchOf(const std::string& model, int step);

inline constexpr int kTransparencySteps = 10;

// What ten steps of the plain loop gave; computed once per (model, m) and kept.
struct PlainRun {
  std::vector<PlainReference::StepResult> steps;
  NamedTensors parameters;
  at::Tensor inference;  // of the first batch, after the last step, in m micro-batches
};
const PlainRun& PlainRunOf(const std::string& model, int micro_batches);

}  // namespace penstock::testing
