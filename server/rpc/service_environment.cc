#include "server/rpc/service_environment.h"

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/serve/pipeline_errors.h"
#include "engine/serve/pipeline_table.h"

namespace penstock {

absl::Status CheckSees(const Identity& identity, const std::string& pipeline) {
  return identity.Sees(pipeline) ? absl::OkStatus() : PipelineNotFound(pipeline);
}

absl::StatusOr<std::shared_ptr<ServedPipeline>> LivePipeline(const ServiceEnvironment& environment,
                                                             const Identity& identity, const std::string& pipeline) {
  PENSTOCK_RETURN_IF_ERROR(CheckSees(identity, pipeline));
  return environment.pipelines->Find(pipeline);
}

absl::StatusOr<std::shared_ptr<ServedPipeline>> FindPipeline(const ServiceEnvironment& environment,
                                                             const Identity& identity, const std::string& name,
                                                             const char* field) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string pipeline, ParsePipelineName(name, field));
  return LivePipeline(environment, identity, pipeline);
}

absl::StatusOr<std::shared_ptr<CheckpointFolder>> FindCheckpointFolder(const ServiceEnvironment& environment,
                                                                       const Identity& identity,
                                                                       const CheckpointName& name) {
  std::shared_ptr<CheckpointFolder> folder =
      identity.Sees(name.pipeline) ? environment.checkpoints->FindFolder(name.pipeline) : nullptr;
  if (folder == nullptr) return WithValue(CheckpointNotFound(name.checkpoint), "pipeline", name.pipeline);
  return folder;
}

absl::StatusOr<CheckpointInfo> FindCheckpoint(const ServiceEnvironment& environment, const Identity& identity,
                                              const CheckpointName& name) {
  PENSTOCK_RETURN_IF_ERROR(FindCheckpointFolder(environment, identity, name).status());
  return environment.checkpoints->Find(name.pipeline, name.checkpoint);
}

}  // namespace penstock
