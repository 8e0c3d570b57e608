#pragma once

// Specifications and mini-batches that tests of pipelines share: small, and cut wherever a test wants.

#include <ATen/ops/randn.h>

#include <cstdint>
#include <string>

#include "engine/exec/pipeline.h"

namespace penstock::testing {

inline constexpr int64_t kSmallWidth = 8;

// Four linear layers of width 8 under SGD, for SmallBatch.
inline PipelineSpec SmallMlp(int stages, int micro_batches, const std::string& kind = "1f1b",
                             CheckpointMode checkpoint = CheckpointMode::kNever) {
  PipelineSpec spec;
  spec.model = {"mlp", {{"layers", int64_t{4}}, {"width", kSmallWidth}}, {}};
  spec.cut.stages = stages;
  spec.schedule = {kind, micro_batches, checkpoint};
  spec.optimizer.name = "sgd";
  spec.optimizer.options = {{"learning_rate", 0.1}};
  spec.loss.name = "mean_squared_error";
  spec.seed = 7;
  return spec;
}

// Input and target, [rows, 8], at random.
inline ContributionRequest SmallBatch(int64_t rows) {
  ContributionRequest request;
  request.inputs = NamedTensors{{"input", at::randn({rows, kSmallWidth})}};
  request.target = at::randn({rows, kSmallWidth});
  return request;
}

// Two linear layers with one weight, on two stages, and statistics of a batch norm on the first; width 3, under AdamW.
inline PipelineSpec TiedAroundBatchNorm() {
  const LayerSpec linear{"linear", "", {{"in", int64_t{3}}, {"out", int64_t{3}}}};
  PipelineSpec spec;
  spec.model.layers = {linear, {"batch_norm", "", {{"features", int64_t{3}}}}, linear};
  spec.model.ties = {{.parameters = {"layer0.weight", "layer2.weight"}}};
  spec.cut.balance = {2, 1};
  spec.schedule = {"1f1b", 2, CheckpointMode::kAlways};
  spec.optimizer.name = "adamw";
  spec.loss.name = "mean_squared_error";
  return spec;
}

}  // namespace penstock::testing
