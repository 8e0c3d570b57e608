#pragma once

// What a served pipeline runs on.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/exec/pipeline.h"
#include "engine/exec/pipeline_spec.h"

namespace penstock {

class PipelineMetrics;

// A pipeline, with what comes and goes with it. An update puts another one in its place.
struct MadeEngine {
  std::shared_ptr<const void> held = {};  // the reservation of the memory that it takes; goes after the pipeline
  std::shared_ptr<PipelineMetrics> metrics = {};  // null: counts go nowhere
  std::unique_ptr<Pipeline> pipeline = {};
  std::optional<DynamicBatchingSpec> batching = {};  // of inference
  // As CheckpointOrigin's: the specification that it was made from, with its plan.
  std::function<std::string(const Pipeline&)> describe = {};
};

}  // namespace penstock
