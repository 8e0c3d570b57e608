#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "server/rpc/health_service.h"
#include "server/rpc/reflection_service.h"

namespace penstock {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthTest : public ::testing::Test {
 protected:
  HealthTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&health_);
    server_ = builder.BuildAndStart();
    stub_ = Health::NewStub(server_->InProcessChannel({}));
  }
  ~HealthTest() override {
    health_.Shutdown();
    server_->Shutdown();
  }

  HealthService health_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Health::Stub> stub_;
};

HealthCheckRequest Ask(const std::string& service) {
  HealthCheckRequest request;
  request.set_service(service);
  return request;
}

TEST_F(HealthTest, CheckTellsTheStateNow) {
  health_.SetServing("", false);
  HealthCheckResponse response;
  grpc::ClientContext first;
  ASSERT_TRUE(stub_->Check(&first, Ask(""), &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  health_.SetServing("", true);
  grpc::ClientContext second;
  ASSERT_TRUE(stub_->Check(&second, Ask(""), &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
}

TEST_F(HealthTest, CheckOfAnUnknownNameIsNotFound) {
  HealthCheckResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Check(&context, Ask("nobody"), &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthTest, WatchTellsTheStateAndEachChange) {
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, Ask("readiness"));
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  for (const bool serving : {true, false, true}) {
    health_.SetServing("readiness", serving);
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(response.status(), serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
  }
  health_.SetServing("other", true);      // not of this watch
  health_.SetServing("readiness", true);  // no change
  health_.SetServing("readiness", false);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthTest, AWatcherThatLeavesIsForgotten) {
  {
    grpc::ClientContext context;
    auto reader = stub_->Watch(&context, Ask(""));
    HealthCheckResponse response;
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(health_.watchers(), 1);
    context.TryCancel();
    reader->Finish().ok();
  }
  server_->Shutdown();  // waits for every stream
  EXPECT_EQ(health_.watchers(), 0);
}

TEST_F(HealthTest, ShutdownEndsWatches) {
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, Ask(""));
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  health_.Shutdown();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  grpc::ClientContext late;
  EXPECT_EQ(stub_->Watch(&late, Ask(""))->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

template <typename Service, typename Request, typename Response>
void ReflectionRebuildsEveryService(Service* service, const std::vector<std::string>& names) {
  google::protobuf::SimpleDescriptorDatabase database;
  for (const std::string& name : names) {
    Request request;
    request.set_file_containing_symbol(name);
    const Response response = service->Answer(request);
    ASSERT_GT(response.file_descriptor_response().file_descriptor_proto_size(), 0) << name;
    for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      ASSERT_TRUE(file.ParseFromString(bytes));
      google::protobuf::FileDescriptorProto known;
      if (!database.FindFileByName(file.name(), &known)) database.Add(file);
    }
  }
  // A pool that knows only these files can build the services: nothing they import is missing.
  google::protobuf::DescriptorPool pool(&database);
  for (const std::string& name : names) {
    const auto* rebuilt = pool.FindServiceByName(name);
    ASSERT_NE(rebuilt, nullptr) << name;
    EXPECT_GT(rebuilt->method_count(), 0);
  }
}

TEST(Reflection, DescribesItsServicesWithAllTheyImport) {
  const std::vector<std::string> names = {
      "penstock.v1.WorkService",        "penstock.v1.PipelineService", "penstock.v1.HandleService",
      "penstock.v1.StateService",       "penstock.v1.InsightService",  "penstock.v1.AdminService",
      "inference.GRPCInferenceService", "grpc.health.v1.Health",       "grpc.reflection.v1.ServerReflection"};
  ReflectionServiceV1 service(names);
  ReflectionRebuildsEveryService<ReflectionServiceV1, grpc::reflection::v1::ServerReflectionRequest,
                                 grpc::reflection::v1::ServerReflectionResponse>(&service, names);
  ReflectionServiceV1Alpha alpha(names);
  ReflectionRebuildsEveryService<ReflectionServiceV1Alpha, grpc::reflection::v1alpha::ServerReflectionRequest,
                                 grpc::reflection::v1alpha::ServerReflectionResponse>(&alpha, names);
}

TEST(Reflection, AnswersEachQuestionOfAStream) {
  ReflectionServiceV1 service({"penstock.v1.WorkService", "grpc.health.v1.Health"});
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  auto stub = grpc::reflection::v1::ServerReflection::NewStub(server->InProcessChannel({}));
  grpc::ClientContext context;
  auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest request;
  grpc::reflection::v1::ServerReflectionResponse response;
  request.set_list_services("");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.list_services_response().service_size(), 2);
  request.set_file_by_filename("nothing.proto");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.error_response().error_code(), static_cast<int>(grpc::StatusCode::NOT_FOUND));
  request.set_file_containing_symbol("penstock.v1.WorkService.TrainStep");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_GT(response.file_descriptor_response().file_descriptor_proto_size(), 0);
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  server->Shutdown();
}

}  // namespace
}  // namespace penstock
