// The calls of PipelineClient that are work.

#include <string>
#include <utility>
#include <vector>

#include "client/lib/client_calls.h"
#include "client/lib/durations.h"
#include "client/lib/large_inputs.h"
#include "client/lib/pipeline_client.h"
#include "client/lib/streamed_calls.h"

namespace penstock {

template <typename Response, typename Method, typename Request>
absl::StatusOr<Response> PipelineClient::Work(Method method, Request* (v1::StreamWorkRequest::*request_on)(),
                                              Response* (v1::StreamWorkResponse::*response_on)(), Request request) {
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
    const absl::Duration wait_for = FromMessage(request.reply().wait_for());
    if (streamed_ == nullptr) return Call(stubs_->work, method, request, request.request_id(), wait_for);
    v1::StreamWorkResponse answer;
    PENSTOCK_RETURN_IF_ERROR(
        runner_.Run(options_.call_deadline + wait_for, request.request_id(), [&](grpc::ClientContext& context) {
          v1::StreamWorkRequest streamed;
          *(streamed.*request_on)() = request;
          return streamed_->Call(context, std::move(streamed), &answer);
        }));
    return std::move(*(answer.*response_on)());
  };
  absl::StatusOr<Response> response = call();
  // Accepted work holds its inputs; a release that fails leaves them to their lease.
  if (!uploaded.empty()) GiveBack(uploaded);
  return response;
}

absl::StatusOr<v1::InferResponse> PipelineClient::Infer(v1::InferRequest request) {
  return Work<v1::InferResponse>(&v1::WorkService::Stub::Infer, &v1::StreamWorkRequest::mutable_infer,
                                 &v1::StreamWorkResponse::mutable_infer, std::move(request));
}

absl::StatusOr<v1::EvaluateResponse> PipelineClient::Evaluate(v1::EvaluateRequest request) {
  return Work<v1::EvaluateResponse>(&v1::WorkService::Stub::Evaluate, &v1::StreamWorkRequest::mutable_evaluate,
                                    &v1::StreamWorkResponse::mutable_evaluate, std::move(request));
}

absl::StatusOr<v1::ForwardResponse> PipelineClient::Forward(v1::ForwardRequest request) {
  return Work<v1::ForwardResponse>(&v1::WorkService::Stub::Forward, &v1::StreamWorkRequest::mutable_forward,
                                   &v1::StreamWorkResponse::mutable_forward, std::move(request));
}

absl::StatusOr<v1::BackwardResponse> PipelineClient::Backward(v1::BackwardRequest request) {
  return Work<v1::BackwardResponse>(&v1::WorkService::Stub::Backward, &v1::StreamWorkRequest::mutable_backward,
                                    &v1::StreamWorkResponse::mutable_backward, std::move(request));
}

absl::StatusOr<v1::ForwardBackwardResponse> PipelineClient::ForwardBackward(v1::ForwardBackwardRequest request) {
  return Work<v1::ForwardBackwardResponse>(&v1::WorkService::Stub::ForwardBackward,
                                           &v1::StreamWorkRequest::mutable_forward_backward,
                                           &v1::StreamWorkResponse::mutable_forward_backward, std::move(request));
}

absl::StatusOr<v1::OptimizerStepResponse> PipelineClient::OptimizerStep(v1::OptimizerStepRequest request) {
  return Work<v1::OptimizerStepResponse>(&v1::WorkService::Stub::OptimizerStep,
                                         &v1::StreamWorkRequest::mutable_optimizer_step,
                                         &v1::StreamWorkResponse::mutable_optimizer_step, std::move(request));
}

absl::StatusOr<v1::TrainStepResponse> PipelineClient::TrainStep(v1::TrainStepRequest request) {
  return Work<v1::TrainStepResponse>(&v1::WorkService::Stub::TrainStep, &v1::StreamWorkRequest::mutable_train_step,
                                     &v1::StreamWorkResponse::mutable_train_step, std::move(request));
}

}  // namespace penstock
