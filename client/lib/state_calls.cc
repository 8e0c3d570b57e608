// The calls of PipelineClient about checkpoints and parameters.

#include <string>
#include <utility>
#include <vector>

#include "client/lib/client_calls.h"
#include "client/lib/pipeline_client.h"

namespace penstock {

absl::StatusOr<v1::Checkpoint> PipelineClient::SaveCheckpoint(v1::SaveCheckpointRequest request) {
  FillRequestId(&request);
  return Call(stubs_->state, &v1::StateService::Stub::SaveCheckpoint, request, request.request_id(), absl::Minutes(10));
}

absl::StatusOr<v1::Checkpoint> PipelineClient::CopyCheckpoint(v1::CopyCheckpointRequest request) {
  FillRequestId(&request);
  return Call(stubs_->state, &v1::StateService::Stub::CopyCheckpoint, request, request.request_id(), absl::Minutes(10));
}

absl::StatusOr<v1::RestoreCheckpointResponse> PipelineClient::RestoreCheckpoint(v1::RestoreCheckpointRequest request) {
  FillRequestId(&request);
  return Call(stubs_->state, &v1::StateService::Stub::RestoreCheckpoint, request, request.request_id(),
              absl::Minutes(10));
}

absl::StatusOr<v1::Pipeline> PipelineClient::PublishCheckpoint(v1::PublishCheckpointRequest request) {
  FillRequestId(&request);
  return Call(stubs_->state, &v1::StateService::Stub::PublishCheckpoint, request, request.request_id(),
              absl::Minutes(10));
}

absl::Status PipelineClient::DeleteCheckpoint(v1::DeleteCheckpointRequest request) {
  FillRequestId(&request);
  return Call(stubs_->state, &v1::StateService::Stub::DeleteCheckpoint, request, request.request_id(),
              absl::Minutes(10))
      .status();
}

absl::StatusOr<std::vector<v1::Checkpoint>> PipelineClient::ListCheckpoints(const std::string& pipeline) {
  v1::ListCheckpointsRequest request;
  request.set_parent(PipelineName(pipeline));
  return ListAll<v1::Checkpoint>(stubs_->state, &v1::StateService::Stub::ListCheckpoints, request,
                                 [](v1::ListCheckpointsResponse& page) { return page.mutable_checkpoints(); });
}

absl::StatusOr<ParameterDownload> PipelineClient::ReadParameters(const v1::ReadParametersRequest& request) {
  return DownloadParameters(runner_, stubs_->tensor_state, request, options_.stream_deadline);
}

absl::StatusOr<v1::WriteParametersResponse> PipelineClient::WriteParameters(v1::WriteParametersRequest request) {
  FillRequestId(&request);
  return Call(stubs_->state, &v1::StateService::Stub::WriteParameters, request, request.request_id(),
              absl::Minutes(10));
}

}  // namespace penstock
