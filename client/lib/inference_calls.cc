// The calls of PipelineClient that are of the Open Inference Protocol.

#include "client/lib/client_calls.h"
#include "client/lib/pipeline_client.h"
#include "engine/base/error.h"

namespace penstock {

absl::StatusOr<inference::ModelMetadataResponse> PipelineClient::ModelMetadata(const std::string& model) {
  inference::ModelMetadataRequest request;
  request.set_name(model);
  return Call(stubs_->inference, &inference::GRPCInferenceService::Stub::ModelMetadata, request);
}

absl::StatusOr<inference::ModelInferResponse> PipelineClient::ModelInfer(const inference::ModelInferRequest& request) {
  return Call(stubs_->inference, &inference::GRPCInferenceService::Stub::ModelInfer, request);
}

absl::StatusOr<inference::ModelStatistics> PipelineClient::ModelStatistics(const std::string& model) {
  inference::ModelStatisticsRequest request;
  request.set_name(model);
  PENSTOCK_ASSIGN_OR_RETURN(inference::ModelStatisticsResponse response,
                            Call(stubs_->inference, &inference::GRPCInferenceService::Stub::ModelStatistics, request));
  if (response.model_stats().empty()) {
    return Error(absl::StatusCode::kNotFound, "PIPELINE_NOT_FOUND", "the server has no statistics of " + model);
  }
  return response.model_stats(0);
}

}  // namespace penstock
