#pragma once

// A pipeline as commands need it that make requests of its signature.

#include <string>

#include "absl/status/statusor.h"
#include "client/lib/pipeline_client.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// As GetPipeline(), but of a pipeline that stands: one that is unloaded, or being made, has no signature.
//
// Fails: as the daemon refuses work of such a one, for example PIPELINE_NOT_READY.
absl::StatusOr<v1::Pipeline> StandingPipeline(PipelineClient& client, const std::string& name);

}  // namespace penstock
