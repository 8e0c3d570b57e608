#pragma once

// The services over an in-process channel, on fake pipelines.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/job_thread.h"
#include "engine/serve/checkpoint_reader.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "inference/grpc_service.grpc.pb.h"
#include "penstock/v1/handle_service.grpc.pb.h"
#include "penstock/v1/insight_service.grpc.pb.h"
#include "penstock/v1/pipeline_service.grpc.pb.h"
#include "penstock/v1/state_service.grpc.pb.h"
#include "penstock/v1/work_service.grpc.pb.h"
#include "server/identity/authenticator.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_metrics.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/services/handle_service.h"
#include "server/rpc/services/inference_service.h"
#include "server/rpc/services/insight_service.h"
#include "server/rpc/services/pipeline_service.h"
#include "server/rpc/services/state_service.h"
#include "server/rpc/services/work_service.h"
#include "tests/unit/serve/hosting_fixture.h"

namespace penstock::testing {

inline std::string Uuid(int number) {
  char text[40];
  std::snprintf(text, sizeof(text), "00000000-0000-4000-8000-%012d", number);
  return text;
}

inline google::rpc::ErrorInfo InfoOf(const grpc::Status& status) {
  google::rpc::Status details;
  details.ParseFromString(status.error_details());
  google::rpc::ErrorInfo info;
  for (const auto& any : details.details()) {
    if (any.UnpackTo(&info)) break;
  }
  return info;
}

// The reason of an answer, or "OK".
inline std::string Reason(const grpc::Status& status) {
  if (status.ok()) return "OK";
  const std::string reason = InfoOf(status).reason();
  return reason.empty() ? "no reason: " + status.error_message() : reason;
}

// Waits until something holds of whose change nobody tells.
template <typename Ready>
void Await(const Ready& ready) {
  absl::Notification never;
  while (!ready()) never.WaitForNotificationWithTimeout(absl::Milliseconds(1));
}

class ServicesTest : public HostingFixture {
 protected:
  explicit ServicesTest(Identity anyone = Identity(), int64_t calls_per_caller = 3)
      : HostingFixture({}, /*max_pipelines=*/3, /*trace_events=*/512, /*memory=*/16 << 20),
        authenticator_(std::move(anyone), &clock_),
        admission_(calls_per_caller, &registry_),
        tokens_(&clock_) {
    const ServiceEnvironment environment{.pipelines = table_.get(),
                                         .checkpoints = checkpoints_.get(),
                                         .checkpoint_reader = &checkpoint_reader_,
                                         .handles = handles_.get(),
                                         .timers = &timers_,
                                         .clock = &clock_,
                                         .metrics = &registry_,
                                         .admission = &admission_,
                                         .page_tokens = &tokens_,
                                         .authenticator = &authenticator_};
    ServiceEnvironment counted = environment;
    counted.memory = &memory_;
    pipelines_service_ = std::make_unique<PipelineServiceImpl>(environment);
    work_service_ = std::make_unique<WorkServiceImpl>(counted);
    handles_service_ = std::make_unique<HandleServiceImpl>(environment);
    state_service_ = std::make_unique<StateServiceImpl>(environment);
    insight_service_ = std::make_unique<InsightServiceImpl>(environment, &trace_jobs_);
    inference_service_ = std::make_unique<InferenceServiceImpl>(
        counted, InferenceServiceImpl::Options{.version = "1", .ready = [] { return true; }});
    admission_.SetGate(Admission::Gate::kOpen);
    for (const char* service :
         {"penstock.v1.WorkService", "penstock.v1.InsightService", "inference.GRPCInferenceService"}) {
      AddServiceMetrics(service, &registry_.server());
    }
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(64 << 20);
    for (grpc::Service* service :
         std::vector<grpc::Service*>{pipelines_service_.get(), work_service_.get(), handles_service_.get(),
                                     state_service_.get(), insight_service_.get(), inference_service_.get()}) {
      builder.RegisterService(service);
    }
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(std::make_unique<CallMetricsFactory>(&registry_.server(), &clock_));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel({});
    work_ = v1::WorkService::NewStub(channel_);
    results_ = v1::HandleService::NewStub(channel_);
    pipelines_ = v1::PipelineService::NewStub(channel_);
    state_ = v1::StateService::NewStub(channel_);
    insight_ = v1::InsightService::NewStub(channel_);
    inference_ = inference::GRPCInferenceService::NewStub(channel_);
  }
  ~ServicesTest() override {
    control_->Resume();
    control_->ResumeInference();
    insight_service_->Shutdown();
    work_service_->Shutdown();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    trace_jobs_.Close();
    checkpoint_reader_.Close();
    handles_service_->Close();
    work_service_->Close();
  }

  static void As(grpc::ClientContext* context, const std::string& caller = "ann") {
    context->AddMetadata("penstock-caller", caller);
  }

  static void SetX(v1::Input* input, std::vector<float> values, const std::string& name = "x") {
    input->set_name(name);
    auto* header = input->mutable_tensor()->mutable_header();
    header->set_type(v1::DATA_TYPE_FP32);
    header->add_shape(static_cast<int64_t>(values.size()));
    header->set_byte_size(static_cast<int64_t>(4 * values.size()));
    input->mutable_tensor()->set_data(values.data(), 4 * values.size());
  }

  static v1::InferRequest AskX(std::vector<float> values, int wait_seconds = 0) {
    v1::InferRequest request;
    request.set_pipeline("pipelines/gpt");
    SetX(request.add_inputs(), std::move(values));
    request.mutable_reply()->mutable_wait_for()->set_seconds(wait_seconds);
    request.mutable_reply()->set_inline_bytes(1 << 20);
    return request;
  }

  static inference::ModelInferRequest AskModel(const std::vector<float>& values, const std::string& id = "mine",
                                               const std::string& model = "gpt") {
    inference::ModelInferRequest request;
    request.set_model_name(model);
    request.set_id(id);
    auto* input = request.add_inputs();
    input->set_name("x");
    input->set_datatype("FP32");
    input->add_shape(static_cast<int64_t>(values.size()));
    request.add_raw_input_contents(values.data(), sizeof(float) * values.size());
    return request;
  }
  grpc::Status ModelInfer(const std::vector<float>& values, inference::ModelInferResponse* response = nullptr) {
    grpc::ClientContext context;
    inference::ModelInferResponse dropped;
    return inference_->ModelInfer(&context, AskModel(values), response != nullptr ? response : &dropped);
  }
  grpc::Status Infer(const v1::InferRequest& request, v1::InferResponse* response, const std::string& caller = "ann") {
    grpc::ClientContext context;
    As(&context, caller);
    return work_->Infer(&context, request, response);
  }

  v1::TrainStepRequest Train(int id) {
    v1::TrainStepRequest request;
    request.set_pipeline("pipelines/gpt");
    request.set_request_id(Uuid(id));
    SetX(request.add_inputs(), {1, 1});
    SetX(request.mutable_target(), {0, 0}, "target");
    request.mutable_reply()->mutable_wait_for()->set_seconds(30);
    return request;
  }
  grpc::Status TrainStep(const v1::TrainStepRequest& request, v1::TrainStepResponse* response) {
    grpc::ClientContext context;
    As(&context);
    return work_->TrainStep(&context, request, response);
  }

  Authenticator authenticator_;
  Admission admission_;
  PageTokens tokens_;
  JobThread trace_jobs_{"ps-traces"};
  CheckpointReader checkpoint_reader_{nullptr};
  std::unique_ptr<PipelineServiceImpl> pipelines_service_;
  std::unique_ptr<WorkServiceImpl> work_service_;
  std::unique_ptr<HandleServiceImpl> handles_service_;
  std::unique_ptr<StateServiceImpl> state_service_;
  std::unique_ptr<InsightServiceImpl> insight_service_;
  std::unique_ptr<InferenceServiceImpl> inference_service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkService::Stub> work_;
  std::unique_ptr<v1::HandleService::Stub> results_;
  std::unique_ptr<v1::PipelineService::Stub> pipelines_;
  std::unique_ptr<v1::StateService::Stub> state_;
  std::unique_ptr<v1::InsightService::Stub> insight_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> inference_;
};

}  // namespace penstock::testing
