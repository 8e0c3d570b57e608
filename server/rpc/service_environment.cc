#include "server/rpc/service_environment.h"

#include "engine/base/status_macros.h"
#include "engine/serve/pipeline_table.h"
#include "server/rpc/call_context.h"

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

}  // namespace penstock
