#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/serve/served_pipeline.h"

namespace penstock {

class Admission;
class CheckpointReader;
class CheckpointStore;
class Clock;
class HandleStore;
class MetricsRegistry;
class PageTokens;
class PipelineTable;
class TimerQueue;

// What the services work on. All of it outlives them.
struct ServiceEnvironment {
  PipelineTable* pipelines = nullptr;
  CheckpointStore* checkpoints = nullptr;
  CheckpointReader* checkpoint_reader = nullptr;
  HandleStore* handles = nullptr;
  TimerQueue* timers = nullptr;
  Clock* clock = nullptr;
  MetricsRegistry* metrics = nullptr;
  Admission* admission = nullptr;
  const PageTokens* page_tokens = nullptr;
};

// The live pipeline that a resource name means.
//
// Fails:     NAME_INVALID naming `field`; PIPELINE_NOT_FOUND, PIPELINE_NOT_READY.
absl::StatusOr<std::shared_ptr<ServedPipeline>> FindPipeline(const ServiceEnvironment& environment,
                                                             const std::string& name, const char* field);

}  // namespace penstock
