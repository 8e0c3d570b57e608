// The calls of PipelineClient that are work.

#include <string>
#include <utility>
#include <vector>

#include "client/lib/client_calls.h"
#include "client/lib/durations.h"
#include "client/lib/large_inputs.h"
#include "client/lib/pipeline_client.h"

namespace penstock {

template <typename Response, typename Method, typename Request>
absl::StatusOr<Response> PipelineClient::Work(Method method, Request request) {
  FillRequestId(&request);
  std::vector<std::string> uploaded;
  absl::Status moved;
  if (request.ByteSizeLong() > kMaxUnaryBytes) {
    const auto put = [&](std::span<const HostTensor> tensors) -> absl::StatusOr<std::string> {
      PENSTOCK_ASSIGN_OR_RETURN(v1::Handle handle, PutTensors(request.pipeline(), tensors));
      return handle.name();
    };
    moved = MoveToHandles(InputsOf(request), put, &uploaded);
  }
  const auto call = [&]() -> absl::StatusOr<Response> {
    PENSTOCK_RETURN_IF_ERROR(moved);
    return Call(stubs_->work, method, request, request.request_id(), FromMessage(request.reply().wait_for()));
  };
  absl::StatusOr<Response> response = call();
  // Accepted work holds its inputs; a release that fails leaves them to their lease.
  if (!uploaded.empty()) GiveBack(uploaded);
  return response;
}

absl::StatusOr<v1::InferResponse> PipelineClient::Infer(v1::InferRequest request) {
  return Work<v1::InferResponse>(&v1::WorkService::Stub::Infer, std::move(request));
}

absl::StatusOr<v1::EvaluateResponse> PipelineClient::Evaluate(v1::EvaluateRequest request) {
  return Work<v1::EvaluateResponse>(&v1::WorkService::Stub::Evaluate, std::move(request));
}

absl::StatusOr<v1::ForwardResponse> PipelineClient::Forward(v1::ForwardRequest request) {
  return Work<v1::ForwardResponse>(&v1::WorkService::Stub::Forward, std::move(request));
}

absl::StatusOr<v1::BackwardResponse> PipelineClient::Backward(v1::BackwardRequest request) {
  return Work<v1::BackwardResponse>(&v1::WorkService::Stub::Backward, std::move(request));
}

absl::StatusOr<v1::ForwardBackwardResponse> PipelineClient::ForwardBackward(v1::ForwardBackwardRequest request) {
  return Work<v1::ForwardBackwardResponse>(&v1::WorkService::Stub::ForwardBackward, std::move(request));
}

absl::StatusOr<v1::OptimizerStepResponse> PipelineClient::OptimizerStep(v1::OptimizerStepRequest request) {
  return Work<v1::OptimizerStepResponse>(&v1::WorkService::Stub::OptimizerStep, std::move(request));
}

absl::StatusOr<v1::TrainStepResponse> PipelineClient::TrainStep(v1::TrainStepRequest request) {
  return Work<v1::TrainStepResponse>(&v1::WorkService::Stub::TrainStep, std::move(request));
}

}  // namespace penstock
