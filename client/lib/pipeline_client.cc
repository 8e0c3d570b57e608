// One method per call of the API. It is long, for the API is wide; retries, uploads and downloads stand in files beside
// it.

#include "client/lib/pipeline_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/lib/channel.h"
#include "client/lib/deadline.h"
#include "client/lib/durations.h"
#include "client/lib/large_inputs.h"
#include "client/lib/request_id.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/caller_name.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "penstock/v1/admin_service.grpc.pb.h"
#include "penstock/v1/handle_service.grpc.pb.h"
#include "penstock/v1/insight_service.grpc.pb.h"
#include "penstock/v1/model_service.grpc.pb.h"
#include "penstock/v1/pipeline_service.grpc.pb.h"
#include "penstock/v1/state_service.grpc.pb.h"
#include "penstock/v1/work_service.grpc.pb.h"

namespace penstock {
namespace {

constexpr absl::Duration kLongestWait = absl::Seconds(60);  // that the server grants one call
constexpr absl::Duration kLongestRead = absl::Minutes(10);  // of a model's file, beyond the usual deadline
constexpr absl::Duration kLastDuty = absl::Seconds(10);     // of a release after CancelCalls()
constexpr int kPageSize = 200;

template <typename Request>
void FillRequestId(Request* request) {
  if (request->request_id().empty()) request->set_request_id(NewRequestId());
}

// Of calls after CancelCalls(): one attempt each, whatever is left of the client's time.
ClientOptions ForLastDuties(ClientOptions options) {
  options.total_deadline = absl::InfiniteDuration();
  options.retry.give_up_after = absl::ZeroDuration();
  return options;
}

// What a stub's method returns.
template <typename Method>
struct ResponseOf;
template <typename Stub, typename Request, typename Response>
struct ResponseOf<grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*)> {
  using type = Response;
};

}  // namespace

std::string PipelineName(std::string_view name) {
  constexpr std::string_view kPrefix = "pipelines/";
  return name.starts_with(kPrefix) ? std::string(name) : std::string(kPrefix) + std::string(name);
}

std::string ModelName(std::string_view name) {
  constexpr std::string_view kPrefix = "models/";
  return name.starts_with(kPrefix) ? std::string(name) : std::string(kPrefix) + std::string(name);
}

struct PipelineClient::Stubs {
  Stubs(const std::shared_ptr<grpc::Channel>& control, const std::shared_ptr<grpc::Channel>& tensors)
      : pipelines(control),
        work(tensors),
        handles(control),
        tensor_handles(tensors),
        tensor_state(tensors),
        state(control),
        insight(control),
        insight_data(tensors),
        models(control),
        model_data(tensors),
        admin(control),
        health(control) {}

  v1::PipelineService::Stub pipelines;
  v1::WorkService::Stub work;
  v1::HandleService::Stub handles;
  v1::HandleService::Stub tensor_handles;
  v1::StateService::Stub tensor_state;
  v1::StateService::Stub state;
  v1::InsightService::Stub insight;
  v1::InsightService::Stub insight_data;
  v1::ModelService::Stub models;
  v1::ModelService::Stub model_data;
  v1::AdminService::Stub admin;
  grpc::health::v1::Health::Stub health;
};

PipelineClient::PipelineClient(const ClientOptions& options)
    : options_(options), runner_(options), last_runner_(ForLastDuties(options)) {}
PipelineClient::~PipelineClient() = default;

absl::StatusOr<std::unique_ptr<PipelineClient>> PipelineClient::Create(ClientOptions options) {
  // gRPC itself would say INTERNAL of metadata that it can't send.
  if (!options.caller.empty()) PENSTOCK_RETURN_IF_ERROR(CheckCallerName(options.caller, "caller"));
  std::unique_ptr<PipelineClient> client(new PipelineClient(options));
  if (options.channel != nullptr) {
    client->stubs_ = std::make_unique<Stubs>(options.channel, options.channel);
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(auto control, OpenChannel(options.address, ChannelUse::kControl));
    PENSTOCK_ASSIGN_OR_RETURN(auto tensors, OpenChannel(options.address, ChannelUse::kTensors));
    client->stubs_ = std::make_unique<Stubs>(control, tensors);
  }
  return client;
}

template <typename Stub, typename Method, typename Request>
auto PipelineClient::Call(Stub& stub, Method method, const Request& request, const std::string& request_id,
                          absl::Duration wait_for) {
  using Response = typename ResponseOf<Method>::type;
  Response response;
  const absl::Status status =
      runner_.Run(options_.call_deadline + wait_for, request_id, [&](grpc::ClientContext& context) {
        response.Clear();
        return DecodeCallError((stub.*method)(&context, request, &response), context);
      });
  return status.ok() ? absl::StatusOr<Response>(std::move(response)) : absl::StatusOr<Response>(status);
}

template <typename Item, typename Stub, typename Method, typename Request, typename ItemsOf>
absl::StatusOr<std::vector<Item>> PipelineClient::ListAll(Stub& stub, Method method, Request request,
                                                          const ItemsOf& items_of) {
  std::vector<Item> all;
  request.set_page_size(kPageSize);
  do {
    PENSTOCK_ASSIGN_OR_RETURN(auto page, Call(stub, method, request));
    for (Item& item : *items_of(page)) all.push_back(std::move(item));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<v1::Pipeline> PipelineClient::CreatePipeline(v1::CreatePipelineRequest request) {
  FillRequestId(&request);
  // Others may be made before it; then it is planned, and its weights are drawn.
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::CreatePipeline, request, request.request_id(),
              absl::Minutes(10) + absl::Seconds(request.spec().planning_seconds()));
}

absl::StatusOr<v1::PlanPipelineResponse> PipelineClient::PlanPipeline(const v1::PlanPipelineRequest& request) {
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::PlanPipeline, request, {},
              absl::Minutes(10) + absl::Seconds(request.spec().planning_seconds()));
}

absl::StatusOr<v1::Pipeline> PipelineClient::GetPipeline(const std::string& name) {
  v1::GetPipelineRequest request;
  request.set_name(PipelineName(name));
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::GetPipeline, request);
}

absl::StatusOr<std::vector<v1::Pipeline>> PipelineClient::ListPipelines() {
  return ListAll<v1::Pipeline>(stubs_->pipelines, &v1::PipelineService::Stub::ListPipelines, v1::ListPipelinesRequest(),
                               [](v1::ListPipelinesResponse& page) { return page.mutable_pipelines(); });
}

absl::StatusOr<v1::Pipeline> PipelineClient::UpdateOptimizer(v1::UpdateOptimizerRequest request) {
  FillRequestId(&request);
  // Training calls that were accepted before go first.
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::UpdateOptimizer, request, request.request_id(),
              absl::Minutes(10));
}

absl::StatusOr<v1::DeletePipelineResponse> PipelineClient::DeletePipeline(v1::DeletePipelineRequest request) {
  FillRequestId(&request);
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::DeletePipeline, request, request.request_id());
}

template <typename Response, typename Method, typename Request>
absl::StatusOr<Response> PipelineClient::Work(Method method, Request request) {
  FillRequestId(&request);
  std::string uploaded;
  if (request.ByteSizeLong() > kMaxUnaryBytes) {
    const std::string& pipeline = request.pipeline();
    PENSTOCK_ASSIGN_OR_RETURN(
        uploaded,
        MoveToHandle(InputsOf(request), [&](std::span<const HostTensor> tensors) -> absl::StatusOr<std::string> {
          PENSTOCK_ASSIGN_OR_RETURN(v1::Handle handle, PutTensors(pipeline, tensors));
          return handle.name();
        }));
  }
  absl::StatusOr<Response> response =
      Call(stubs_->work, method, request, request.request_id(), FromMessage(request.reply().wait_for()));
  // Accepted work holds its inputs; a release that fails leaves them to their lease.
  if (!uploaded.empty()) GiveBack(std::array{uploaded});
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

absl::StatusOr<v1::Handle> PipelineClient::PutTensors(const std::string& pipeline, std::span<const HostTensor> tensors,
                                                      const UploadOptions& options) {
  return UploadTensors(runner_, stubs_->tensor_handles, PipelineName(pipeline), tensors, options);
}

absl::StatusOr<FetchedHandle> PipelineClient::FetchHandle(const std::string& name, const FetchOptions& options) {
  return DownloadHandle(runner_, stubs_->tensor_handles, name, options);
}

absl::StatusOr<v1::WaitHandlesResponse> PipelineClient::WaitHandles(const v1::WaitHandlesRequest& request) {
  return Call(stubs_->handles, &v1::HandleService::Stub::WaitHandles, request, "", FromMessage(request.wait_for()));
}

absl::StatusOr<v1::Handle> PipelineClient::GetHandle(const std::string& name) {
  v1::GetHandleRequest request;
  request.set_name(name);
  return Call(stubs_->handles, &v1::HandleService::Stub::GetHandle, request);
}

absl::StatusOr<std::vector<v1::Handle>> PipelineClient::ListHandles(const std::string& parent) {
  v1::ListHandlesRequest request;
  request.set_parent(PipelineName(parent));
  return ListAll<v1::Handle>(stubs_->handles, &v1::HandleService::Stub::ListHandles, request,
                             [](v1::ListHandlesResponse& page) { return page.mutable_handles(); });
}

absl::StatusOr<v1::RenewHandlesResponse> PipelineClient::RenewHandles(const v1::RenewHandlesRequest& request) {
  return Call(stubs_->handles, &v1::HandleService::Stub::RenewHandles, request);
}

absl::StatusOr<v1::ReleaseHandlesResponse> PipelineClient::ReleaseHandles(std::span<const std::string> names) {
  v1::ReleaseHandlesRequest request;
  request.mutable_names()->Add(names.begin(), names.end());
  return Call(stubs_->handles, &v1::HandleService::Stub::ReleaseHandles, request);
}

void PipelineClient::GiveBack(std::span<const std::string> names) {
  if (ReleaseHandles(names).ok() || !runner_.cancelled()) return;
  v1::ReleaseHandlesRequest request;
  request.mutable_names()->Add(names.begin(), names.end());
  last_runner_
      .Run(kLastDuty, {},
           [&](grpc::ClientContext& context) {
             v1::ReleaseHandlesResponse response;
             return DecodeCallError(stubs_->handles.ReleaseHandles(&context, request, &response), context);
           })
      .IgnoreError();
}

absl::StatusOr<v1::CancelHandlesResponse> PipelineClient::CancelHandles(std::span<const std::string> names) {
  v1::CancelHandlesRequest request;
  request.mutable_names()->Add(names.begin(), names.end());
  return Call(stubs_->handles, &v1::HandleService::Stub::CancelHandles, request);
}

absl::StatusOr<v1::Handle> PipelineClient::AwaitHandle(const std::string& name, absl::Duration timeout) {
  timeout = std::min(timeout, runner_.left());
  const int64_t end = DeadlineAfter(runner_.clock(), timeout);
  while (true) {
    const absl::Duration left = absl::Nanoseconds(end - runner_.clock()->NowNanos());
    v1::WaitHandlesRequest request;
    request.add_names(name);
    *request.mutable_wait_for() = ToMessage(std::clamp(left, absl::ZeroDuration(), kLongestWait));
    PENSTOCK_ASSIGN_OR_RETURN(v1::WaitHandlesResponse response, WaitHandles(request));
    if (response.handles_size() != 1) {
      return Error(absl::StatusCode::kInternal, "BUG", "the server answered for other handles than asked for");
    }
    if (response.handles(0).has_error()) return StatusFromMessage(response.handles(0).error());
    v1::Handle& handle = *response.mutable_handles(0)->mutable_handle();
    if (handle.state() == v1::HANDLE_STATE_READY) return std::move(handle);
    if (handle.has_error()) return StatusFromMessage(handle.error());
    if (handle.state() != v1::HANDLE_STATE_PENDING) {
      return Error(absl::StatusCode::kNotFound, "HANDLE_RELEASED", "the handle holds nothing any more")
          .With("handle", name);
    }
    if (left <= kLongestWait) {
      return Error(absl::StatusCode::kDeadlineExceeded, "HANDLE_PENDING",
                   absl::StrCat("the handle is still pending after ", absl::FormatDuration(timeout)))
          .With("handle", name);
    }
  }
}

absl::StatusOr<FetchedHandle> PipelineClient::FetchResult(const v1::Result& result, const FetchOptions& options) {
  if (result.tensors_size() == 0 && result.values_size() == 0) return FetchHandle(result.handle().name(), options);
  FetchedHandle fetched{.handle = result.handle(), .tensors = {}, .values = {}};
  for (const v1::Tensor& message : result.tensors()) {
    PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, HostTensor::FromMessage(message));
    fetched.tensors.push_back(std::move(tensor));
  }
  fetched.values.assign(result.values().begin(), result.values().end());
  return fetched;
}

absl::StatusOr<std::vector<HostTensor>> PipelineClient::ResultTensors(const v1::Result& result,
                                                                      const FetchOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(FetchedHandle fetched, FetchResult(result, options));
  return std::move(fetched.tensors);
}

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

absl::StatusOr<v1::Model> PipelineClient::UploadModel(const std::string& id, std::string_view file,
                                                      const ModelUploadOptions& options) {
  return penstock::UploadModel(runner_, stubs_->model_data, id, file, options);
}

absl::StatusOr<v1::Model> PipelineClient::GetModel(const std::string& name) {
  v1::GetModelRequest request;
  request.set_name(ModelName(name));
  return Call(stubs_->models, &v1::ModelService::Stub::GetModel, request, {}, kLongestRead);
}

absl::StatusOr<std::vector<v1::Model>> PipelineClient::ListModels() {
  // What a file holds is read when it is asked for the first time.
  std::vector<v1::Model> all;
  v1::ListModelsRequest request;
  request.set_page_size(kPageSize);
  do {
    PENSTOCK_ASSIGN_OR_RETURN(v1::ListModelsResponse page,
                              Call(stubs_->models, &v1::ModelService::Stub::ListModels, request, {}, kLongestRead));
    for (v1::Model& model : *page.mutable_models()) all.push_back(std::move(model));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::Status PipelineClient::DeleteModel(const std::string& name) {
  v1::DeleteModelRequest request;
  request.set_name(ModelName(name));
  return Call(stubs_->models, &v1::ModelService::Stub::DeleteModel, request).status();
}

absl::StatusOr<v1::PipelineStatistics> PipelineClient::Statistics(const std::string& pipeline) {
  v1::WatchStatisticsRequest request;
  request.set_pipeline(PipelineName(pipeline));
  request.mutable_interval()->set_seconds(1);
  request.set_max_updates(1);
  v1::PipelineStatistics statistics;
  bool received = false;
  PENSTOCK_RETURN_IF_ERROR(WatchStatistics(request, [&](const v1::PipelineStatistics& update) {
    statistics = update;
    received = true;
    return true;
  }));
  if (!received) return Error(absl::StatusCode::kInternal, "BUG", "the server sent no statistics");
  return statistics;
}

absl::Status PipelineClient::WatchStatistics(const v1::WatchStatisticsRequest& request,
                                             const std::function<bool(const v1::PipelineStatistics&)>& on_update) {
  return runner_.Run(options_.stream_deadline, "", [&](grpc::ClientContext& context) -> CallError {
    auto stream = stubs_->insight.WatchStatistics(&context, request);
    v1::PipelineStatistics update;
    bool wanted = true;
    while (wanted && stream->Read(&update)) wanted = on_update(update);
    if (!wanted) {
      context.TryCancel();
      while (stream->Read(&update)) {
      }
    }
    const grpc::Status ended = stream->Finish();
    return wanted ? DecodeCallError(ended, context) : CallError();
  });
}

absl::StatusOr<v1::GetScheduleResponse> PipelineClient::GetSchedule(v1::GetScheduleRequest request) {
  constexpr int kActionsPerPage = 1000;
  v1::GetScheduleResponse all;
  request.set_page_size(kActionsPerPage);
  do {
    PENSTOCK_ASSIGN_OR_RETURN(v1::GetScheduleResponse page,
                              Call(stubs_->insight, &v1::InsightService::Stub::GetSchedule, request));
    request.set_page_token(page.next_page_token());
    if (all.actions_size() > 0) {
      all.mutable_actions()->MergeFrom(page.actions());
    } else {
      all = std::move(page);
    }
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

absl::StatusOr<v1::TraceSummary> PipelineClient::ExportTrace(
    const v1::ExportTraceRequest& request, const std::function<absl::Status(std::string_view)>& on_data) {
  v1::TraceSummary summary;
  absl::Status taken;
  bool begun = false;
  const absl::Status status = runner_.Run(options_.stream_deadline, "", [&](grpc::ClientContext& context) -> CallError {
    auto stream = stubs_->insight_data.ExportTrace(&context, request);
    v1::ExportTraceResponse piece;
    while (taken.ok() && stream->Read(&piece)) {
      if (piece.has_summary()) summary = piece.summary();
      begun = begun || !piece.data().empty();
      if (!piece.data().empty()) taken = on_data(piece.data());
    }
    if (!taken.ok()) context.TryCancel();
    while (stream->Read(&piece)) {
    }
    const grpc::Status ended = stream->Finish();
    if (!taken.ok()) return {};
    CallError error = DecodeCallError(ended, context);
    if (begun) error.retry_forbidden = true;  // half of a file can't be taken back
    return error;
  });
  PENSTOCK_RETURN_IF_ERROR(taken);
  PENSTOCK_RETURN_IF_ERROR(status);
  return summary;
}

absl::StatusOr<v1::ServerInfo> PipelineClient::GetServerInfo() {
  return Call(stubs_->admin, &v1::AdminService::Stub::GetServerInfo, v1::GetServerInfoRequest());
}

absl::StatusOr<Health> PipelineClient::CheckHealth(const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  const auto response = Call(stubs_->health, &grpc::health::v1::Health::Stub::Check, request);
  if (response.status().code() == absl::StatusCode::kNotFound) return Health::kServiceUnknown;
  if (!response.ok()) return response.status();
  return response->status() == grpc::health::v1::HealthCheckResponse::SERVING ? Health::kServing : Health::kNotServing;
}

void PipelineClient::CancelCalls() { runner_.CancelAll(); }
bool PipelineClient::cancelled() const { return runner_.cancelled(); }

}  // namespace penstock
