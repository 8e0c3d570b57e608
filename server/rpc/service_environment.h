#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/serve/served_pipeline.h"
#include "server/identity/identity.h"
#include "server/rpc/call_context.h"

namespace penstock {

class Admission;
class Authenticator;
class CheckpointReader;
class CheckpointStore;
class Clock;
class HandleStore;
class MemoryLedger;
class MetricsRegistry;
class PageTokens;
class PipelineTable;
class TimerQueue;
struct TraceCapture;

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
  MemoryLedger* memory = nullptr;  // null: nothing is counted
  const PageTokens* page_tokens = nullptr;
  const Authenticator* authenticator = nullptr;
  // Puts what lanes of other ranks did into a trace of the pipeline's own ones, and calls `done` once, on any thread;
  // null: there are no other ranks.
  std::function<void(const std::string& pipeline, TraceCapture own, std::function<void(TraceCapture)> done)>
      join_traces = {};
};

// Whether there may be such a pipeline for the caller. Fails: PIPELINE_NOT_FOUND, as if there were none.
absl::Status CheckSees(const Identity& identity, const std::string& pipeline);

// The live pipeline of an identifier.
//
// Fails:     PIPELINE_NOT_FOUND, also for one that the caller may not know of; PIPELINE_NOT_READY.
absl::StatusOr<std::shared_ptr<ServedPipeline>> LivePipeline(const ServiceEnvironment& environment,
                                                             const Identity& identity, const std::string& pipeline);

// The same of a resource name. Fails: NAME_INVALID naming `field`, too.
absl::StatusOr<std::shared_ptr<ServedPipeline>> FindPipeline(const ServiceEnvironment& environment,
                                                             const Identity& identity, const std::string& name,
                                                             const char* field);

// The checkpoints among which a name would stand.
//
// Fails:     CHECKPOINT_NOT_FOUND where the pipeline has none, or the caller may not know of it.
absl::StatusOr<std::shared_ptr<CheckpointFolder>> FindCheckpointFolder(const ServiceEnvironment& environment,
                                                                       const Identity& identity,
                                                                       const CheckpointName& name);

// One that is there. Fails: as FindCheckpointFolder().
absl::StatusOr<CheckpointInfo> FindCheckpoint(const ServiceEnvironment& environment, const Identity& identity,
                                              const CheckpointName& name);

}  // namespace penstock
