#include "client/cli/standing_pipeline.h"

#include "engine/base/status_macros.h"

namespace penstock {

absl::StatusOr<v1::Pipeline> StandingPipeline(PipelineClient& client, const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(v1::Pipeline pipeline, client.GetPipeline(name));
  if (pipeline.has_signature()) return pipeline;
  // The daemon says why: it has statistics only of what stands.
  PENSTOCK_RETURN_IF_ERROR(client.Statistics(pipeline.name()).status());
  return client.GetPipeline(name);  // it has come to stand meanwhile
}

}  // namespace penstock
