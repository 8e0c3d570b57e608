#include "server/rpc/service_environment.h"

#include "engine/base/status_macros.h"
#include "engine/serve/pipeline_table.h"
#include "server/rpc/call_context.h"

namespace penstock {

absl::StatusOr<std::shared_ptr<ServedPipeline>> FindPipeline(const ServiceEnvironment& environment,
                                                             const std::string& name, const char* field) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string pipeline, ParsePipelineName(name, field));
  return environment.pipelines->Find(pipeline);
}

}  // namespace penstock
