#include "client/lib/pipeline_client.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/channel.h"
#include "client/lib/client_calls.h"
#include "client/lib/streamed_calls.h"
#include "engine/wire/caller_name.h"

namespace penstock {
namespace {

// Of calls after CancelCalls(): one attempt each, whatever is left of the client's time.
ClientOptions ForLastDuties(ClientOptions options) {
  options.total_deadline = absl::InfiniteDuration();
  options.retry.give_up_after = absl::ZeroDuration();
  return options;
}

}  // namespace

std::string PipelineName(std::string_view name) {
  constexpr std::string_view kPrefix = "pipelines/";
  return name.starts_with(kPrefix) ? std::string(name) : std::string(kPrefix) + std::string(name);
}

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
    PENSTOCK_ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(options.credentials));
    PENSTOCK_ASSIGN_OR_RETURN(auto control, OpenChannel(options.address, ChannelUse::kControl, credentials));
    PENSTOCK_ASSIGN_OR_RETURN(auto tensors, OpenChannel(options.address, ChannelUse::kTensors, credentials));
    client->stubs_ = std::make_unique<Stubs>(control, tensors);
  }
  if (options.work_stream) {
    client->streamed_ = std::make_unique<StreamedCalls>(
        &client->stubs_->work,
        [runner = &client->runner_](grpc::ClientContext* context) { runner->AddCaller(context); });
  }
  return client;
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

absl::StatusOr<v1::Pipeline> PipelineClient::UpdatePipeline(v1::UpdatePipelineRequest request) {
  FillRequestId(&request);
  // It is planned and built, then training calls that were accepted before go first.
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::UpdatePipeline, request, request.request_id(),
              absl::Minutes(10) + absl::Seconds(request.spec().planning_seconds()));
}

absl::StatusOr<v1::Pipeline> PipelineClient::UnloadPipeline(v1::UnloadPipelineRequest request) {
  FillRequestId(&request);
  // Work that was accepted before ends first.
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::UnloadPipeline, request, request.request_id(),
              absl::Minutes(10));
}

absl::StatusOr<v1::Pipeline> PipelineClient::LoadPipeline(v1::LoadPipelineRequest request) {
  FillRequestId(&request);
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::LoadPipeline, request, request.request_id(),
              absl::Minutes(10));
}

absl::StatusOr<v1::DeletePipelineResponse> PipelineClient::DeletePipeline(v1::DeletePipelineRequest request) {
  FillRequestId(&request);
  return Call(stubs_->pipelines, &v1::PipelineService::Stub::DeletePipeline, request, request.request_id());
}

absl::StatusOr<v1::ServerInfo> PipelineClient::GetServerInfo() {
  return Call(stubs_->admin, &v1::AdminService::Stub::GetServerInfo, v1::GetServerInfoRequest());
}

absl::StatusOr<v1::DrainState> PipelineClient::Drain(const v1::DrainRequest& request) {
  return Call(stubs_->admin, &v1::AdminService::Stub::Drain, request);
}

absl::StatusOr<v1::SetLogLevelResponse> PipelineClient::SetLogLevel(const v1::SetLogLevelRequest& request) {
  return Call(stubs_->admin, &v1::AdminService::Stub::SetLogLevel, request);
}

absl::StatusOr<Health> PipelineClient::CheckHealth(const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  const auto response = Call(stubs_->health, &grpc::health::v1::Health::Stub::Check, request);
  if (response.status().code() == absl::StatusCode::kNotFound) return Health::kServiceUnknown;
  if (!response.ok()) return response.status();
  return response->status() == grpc::health::v1::HealthCheckResponse::SERVING ? Health::kServing : Health::kNotServing;
}

void PipelineClient::CancelCalls() {
  runner_.CancelAll();
  if (streamed_ != nullptr) streamed_->Cancel();
}
bool PipelineClient::cancelled() const { return runner_.cancelled(); }

}  // namespace penstock
