// Every method of every service, called in each role: what is let in, and what a pattern hides.

#include "server/api_services.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/base/job_thread.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "penstock/v1/pipeline_service.grpc.pb.h"
#include "penstock/v1/state_service.grpc.pb.h"
#include "penstock/v1/work_service.grpc.pb.h"
#include "server/identity/authenticator.h"
#include "server/models/model_root.h"
#include "server/rpc/admission.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/method_roles.h"
#include "tests/unit/serve/hosting_fixture.h"

namespace penstock::testing {
namespace {

// The daemon's services for callers of one role and pattern, beside the pipeline "gpt".
class RolesTest : public HostingFixture {
 protected:
  ~RolesTest() override { StopServer(); }

  void Serve(const Identity& anyone) {
    StopServer();
    authenticator_ = std::make_unique<Authenticator>(anyone, &clock_);
    services_ = std::make_unique<ApiServices>(
        ApiServices::Parts{.environment = {.pipelines = table_.get(),
                                           .checkpoints = checkpoints_.get(),
                                           .handles = handles_.get(),
                                           .timers = &timers_,
                                           .clock = &clock_,
                                           .metrics = &registry_,
                                           .admission = &admission_,
                                           .page_tokens = &tokens_,
                                           .authenticator = authenticator_.get()},
                           .trace_jobs = &trace_jobs_,
                           .models = {.root = &models_},
                           .info = [] { return v1::ServerInfo(); },
                           .drain = [](const v1::DrainRequest&) { return v1::DrainState(); },
                           .inference = {.version = "1", .ready = [] { return true; }}});
    admission_.SetGate(Admission::Gate::kOpen);
    grpc::ServerBuilder builder;
    for (grpc::Service* service : services_->all()) builder.RegisterService(service);
    server_ = builder.BuildAndStart();
    channel_ = server_->InProcessChannel({});
  }

  void StopServer() {
    if (server_ == nullptr) return;
    services_->Shutdown();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    services_->Close();
    server_.reset();
  }

  // The status of a call with an empty message; a stream that goes on is left after its first message.
  grpc::Status CallEmpty(const std::string& path) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto await = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      return ok;
    };
    auto call = stub.PrepareCall(&context, path, &queue);
    call->StartCall(nullptr);
    await();
    grpc::Slice nothing("", 0);
    call->WriteLast(grpc::ByteBuffer(&nothing, 1), grpc::WriteOptions(), nullptr);
    await();
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    if (await()) context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    await();
    return status;
  }

  static google::rpc::ErrorInfo InfoOfStatus(const grpc::Status& status) {
    google::rpc::Status details;
    google::rpc::ErrorInfo info;
    if (details.ParseFromString(status.error_details()) && details.details_size() > 0)
      details.details(0).UnpackTo(&info);
    return info;
  }
  static std::string ReasonOfStatus(const grpc::Status& status) {
    return status.ok() ? "OK" : InfoOfStatus(status).reason();
  }
  static Identity On(const std::string& pattern, Role role = Role::kAdmin) {
    return {.role = role, .pipelines = PipelinePattern::Parse(pattern, "pattern").value()};
  }

  std::unique_ptr<Authenticator> authenticator_;
  Admission admission_{3, &registry_};
  PageTokens tokens_{&clock_};
  JobThread trace_jobs_{"ps-traces"};
  ModelRoot models_{ModelRoot::Options{.files = RealFileSystem()}};
  std::unique_ptr<ApiServices> services_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RolesTest, EveryMethodLetsInThoseOfItsRoleAndAbove) {
  int methods = 0;
  for (const Role role : {Role::kViewer, Role::kInfer, Role::kTrain, Role::kAdmin}) {
    Serve({.role = role});
    ASSERT_TRUE(CheckMethodRoles(services_->names()).ok());
    for (const std::string& name : services_->names()) {
      const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
      for (int i = 0; i < service->method_count(); ++i) {
        const auto& method = *service->method(i);
        const grpc::Status status = CallEmpty("/" + name + "/" + method.name());
        const Role needed = RoleOf(method).value();
        const std::string cell = std::string(NameOf(role)) + " calls " + method.full_name();
        ++methods;
        if (role >= needed) {
          EXPECT_NE(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << cell;
          EXPECT_NE(status.error_code(), grpc::StatusCode::INTERNAL) << cell << ": " << status.error_message();
          continue;
        }
        EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << cell;
        const google::rpc::ErrorInfo info = InfoOfStatus(status);
        EXPECT_EQ(info.reason(), "ROLE_MISSING") << cell;
        EXPECT_EQ(info.metadata().at("role"), NameOf(needed)) << cell;
        EXPECT_EQ(info.metadata().at("method"), name + "/" + method.name()) << cell;
      }
    }
  }
  EXPECT_GT(methods, 4 * 40);
}

TEST_F(RolesTest, APipelineOutsideThePatternIsNotThere) {
  Serve(On("team-*"));
  const auto pipelines = v1::PipelineService::NewStub(channel_);
  const auto work = v1::WorkService::NewStub(channel_);
  const auto state = v1::StateService::NewStub(channel_);
  {
    grpc::ClientContext context;
    v1::GetPipelineRequest request;
    request.set_name("pipelines/gpt");
    v1::Pipeline pipeline;
    EXPECT_EQ(ReasonOfStatus(pipelines->GetPipeline(&context, request, &pipeline)), "PIPELINE_NOT_FOUND");
  }
  {
    grpc::ClientContext context;
    v1::ListPipelinesResponse list;
    EXPECT_TRUE(pipelines->ListPipelines(&context, {}, &list).ok());
    EXPECT_EQ(list.pipelines_size(), 0);
  }
  {
    grpc::ClientContext context;
    v1::InferRequest request;
    request.set_pipeline("pipelines/gpt");
    v1::InferResponse response;
    EXPECT_EQ(ReasonOfStatus(work->Infer(&context, request, &response)), "PIPELINE_NOT_FOUND");
  }
  {
    grpc::ClientContext context;
    v1::DeletePipelineRequest request;
    request.set_name("pipelines/gpt");
    request.set_request_id("00000000-0000-4000-8000-000000000001");
    v1::DeletePipelineResponse response;
    EXPECT_EQ(ReasonOfStatus(pipelines->DeletePipeline(&context, request, &response)), "PIPELINE_NOT_FOUND");
  }
  {
    grpc::ClientContext context;
    v1::ListCheckpointsRequest request;
    request.set_parent("pipelines/gpt");
    v1::ListCheckpointsResponse response;
    EXPECT_EQ(ReasonOfStatus(state->ListCheckpoints(&context, request, &response)), "PIPELINE_NOT_FOUND");
  }
  EXPECT_TRUE(table_->Get("gpt").ok());
}

TEST_F(RolesTest, CheckpointsOutsideThePatternAreNotThere) {
  Serve(On("*"));
  {
    const auto state = v1::StateService::NewStub(channel_);
    grpc::ClientContext context;
    v1::SaveCheckpointRequest request;
    request.set_pipeline("pipelines/gpt");
    request.set_checkpoint_id("one");
    request.set_request_id("00000000-0000-4000-8000-000000000003");
    v1::Checkpoint saved;
    const grpc::Status status = state->SaveCheckpoint(&context, request, &saved);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  const auto listed = [this] {
    const auto state = v1::StateService::NewStub(channel_);
    grpc::ClientContext context;
    v1::ListCheckpointsRequest request;
    request.set_parent("pipelines/-");
    v1::ListCheckpointsResponse response;
    EXPECT_TRUE(state->ListCheckpoints(&context, request, &response).ok());
    return response.checkpoints_size();
  };
  EXPECT_EQ(listed(), 1);
  Serve(On("team-*"));
  EXPECT_EQ(listed(), 0);
  const auto state = v1::StateService::NewStub(channel_);
  {
    grpc::ClientContext context;
    v1::RestoreCheckpointRequest request;
    request.set_name("pipelines/gpt/checkpoints/one");
    request.set_request_id("00000000-0000-4000-8000-000000000004");
    v1::RestoreCheckpointResponse response;
    EXPECT_EQ(ReasonOfStatus(state->RestoreCheckpoint(&context, request, &response)), "PIPELINE_NOT_FOUND");
  }
  {
    const auto pipelines = v1::PipelineService::NewStub(channel_);
    grpc::ClientContext context;
    v1::CreatePipelineRequest request;
    request.set_pipeline_id("team-copy");
    request.set_from_checkpoint("pipelines/gpt/checkpoints/one");
    request.set_request_id("00000000-0000-4000-8000-000000000005");
    v1::Pipeline pipeline;
    EXPECT_EQ(ReasonOfStatus(pipelines->CreatePipeline(&context, request, &pipeline)), "CHECKPOINT_NOT_FOUND");
  }
}

TEST_F(RolesTest, APipelineOutsideThePatternIsNotMade) {
  Serve(On("team-*", Role::kTrain));
  const auto pipelines = v1::PipelineService::NewStub(channel_);
  grpc::ClientContext context;
  v1::CreatePipelineRequest request;
  request.set_pipeline_id("other");
  request.set_request_id("00000000-0000-4000-8000-000000000002");
  v1::Pipeline pipeline;
  const grpc::Status status = pipelines->CreatePipeline(&context, request, &pipeline);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReasonOfStatus(status), "ROLE_MISSING");
  EXPECT_EQ(InfoOfStatus(status).metadata().at("pipeline"), "other");
}

TEST_F(RolesTest, APipelineWithinThePatternIsThere) {
  Serve(On("g*", Role::kViewer));
  const auto pipelines = v1::PipelineService::NewStub(channel_);
  grpc::ClientContext context;
  v1::ListPipelinesResponse list;
  EXPECT_TRUE(pipelines->ListPipelines(&context, {}, &list).ok());
  ASSERT_EQ(list.pipelines_size(), 1);
  EXPECT_EQ(list.pipelines(0).name(), "pipelines/gpt");
}

}  // namespace
}  // namespace penstock::testing
