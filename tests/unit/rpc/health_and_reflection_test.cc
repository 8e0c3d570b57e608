#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/base/timer_queue.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/identity/authenticator.h"
#include "server/rpc/call_context.h"
#include "server/rpc/services/health_service.h"
#include "server/rpc/services/reflection_service.h"
#include "server/rpc/streams/stream_slots.h"
#include "tests/support/fake_clock.h"

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

  testing::FakeClock clock_;
  TimerQueue timers_{&clock_};
  Authenticator authenticator_{Identity(), &clock_};
  HealthServiceImpl health_{&authenticator_, &timers_, &clock_, /*max_watches=*/5};
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

// The reason of an answer.
std::string Reason(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  details.ParseFromString(status.error_details());
  if (details.details_size() == 0 || !details.details(0).UnpackTo(&info)) return "";
  return info.reason();
}

TEST_F(HealthTest, TakesNoLongNames) {
  const std::string long_name(HealthServiceImpl::kMaxMessageBytes, 'x');
  HealthCheckResponse response;
  grpc::ClientContext check;
  EXPECT_EQ(Reason(stub_->Check(&check, Ask(long_name), &response)), "MESSAGE_TOO_LARGE");
  grpc::ClientContext watch;
  EXPECT_EQ(Reason(stub_->Watch(&watch, Ask(long_name))->Finish()), "MESSAGE_TOO_LARGE");
}

TEST_F(HealthTest, AHostHasAShareOfTheWatchesWhateverItCallsItself) {
  HealthCheckResponse response;
  grpc::ClientContext contexts[5];
  std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> watches;
  for (int i = 0; i < 5; ++i) {
    contexts[i].AddMetadata("penstock-caller", "name" + std::to_string(i));
    watches.push_back(stub_->Watch(&contexts[i], Ask("")));
    if (i < 4) ASSERT_TRUE(watches[i]->Read(&response)) << i;
  }
  EXPECT_EQ(Reason(watches[4]->Finish()), "CALLER_QUOTA");
  contexts[0].TryCancel();
  EXPECT_EQ(watches[0]->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(HostOf, IsTheAddressWithoutThePort) {
  EXPECT_EQ(HostIn("ipv4:192.0.2.1:50000"), "ipv4:192.0.2.1");
  EXPECT_EQ(HostIn("ipv6:%5B2001:db8::1%5D:50000"), "ipv6:%5B2001:db8::1%5D");
  EXPECT_EQ(HostIn("unix:/run/penstock.sock"), "unix");
  EXPECT_EQ(HostIn("unix:"), "unix");
}

TEST(StreamSlots, EachHasAShareAndLeavesRoomForOthers) {
  StreamSlots slots("things", 8);
  std::vector<StreamSlots::Slot> taken;
  const auto take = [&](const std::string& owner) {
    absl::StatusOr<StreamSlots::Slot> slot = slots.Take(owner);
    if (slot.ok()) taken.push_back(*std::move(slot));
    return ReasonOf(slot.status());
  };
  for (int i = 0; i < 6; ++i) EXPECT_EQ(take("a"), "") << i;
  EXPECT_EQ(take("a"), "CALLER_QUOTA");
  EXPECT_EQ(take("b"), "");
  EXPECT_EQ(take("b"), "");
  EXPECT_EQ(take("c"), "STREAM_LIMIT");
  taken.pop_back();
  EXPECT_EQ(take("a"), "CALLER_QUOTA") << "others have some";
  EXPECT_EQ(take("c"), "") << "the first needs room only";
  taken.clear();
  EXPECT_EQ(take("b"), "");
}

// Streams that ask for the list of services.
class ReflectionStreams : public ::testing::Test {
 protected:
  using Stub = grpc::reflection::v1::ServerReflection;
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;

  ReflectionStreams() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = Stub::NewStub(server_->InProcessChannel({}));
    request_.set_list_services("");
  }
  ~ReflectionStreams() override { server_->Shutdown(std::chrono::system_clock::now()); }

  testing::FakeClock clock_;
  TimerQueue timers_{&clock_};
  Authenticator authenticator_{Identity(), &clock_};
  ReflectionServiceV1 service_{&authenticator_, {"penstock.v1.WorkService"}, &timers_, &clock_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Stub::Stub> stub_;
  Request request_;
  Response response_;
};

TEST_F(ReflectionStreams, TakeNoLongQuestions) {
  grpc::ClientContext context;
  auto stream = stub_->ServerReflectionInfo(&context);
  request_.set_file_by_filename(std::string(kMaxReflectionBytes, 'x'));
  ASSERT_TRUE(stream->Write(request_));
  EXPECT_FALSE(stream->Read(&response_));
  EXPECT_EQ(Reason(stream->Finish()), "MESSAGE_TOO_LARGE");
}

TEST_F(ReflectionStreams, EndWhenNobodyAsks) {
  grpc::ClientContext context;
  auto stream = stub_->ServerReflectionInfo(&context);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(stream->Write(request_));
    ASSERT_TRUE(stream->Read(&response_));
    clock_.Advance(kReflectionPatience - absl::Seconds(1));
    timers_.SettleForTest();
  }
  absl::Notification ended;
  Thread time("time", [&] {
    while (!ended.WaitForNotificationWithTimeout(absl::Milliseconds(1))) clock_.Advance(absl::Minutes(1));
  });
  EXPECT_FALSE(stream->Read(&response_));
  ended.Notify();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ReflectionStreams, AreLimited) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<Request, Response>>> streams;
  const auto open = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub_->ServerReflectionInfo(contexts.back().get()));
    return streams.back()->Write(request_) && streams.back()->Read(&response_);
  };
  for (int i = 0; i < kMaxReflectionStreams * 3 / 4; ++i) ASSERT_TRUE(open()) << i;
  EXPECT_FALSE(open());
  EXPECT_EQ(Reason(streams.back()->Finish()), "CALLER_QUOTA");
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
  testing::FakeClock clock;
  TimerQueue timers(&clock);
  Authenticator authenticator(Identity(), &clock);
  ReflectionServiceV1 service(&authenticator, names, &timers, &clock);
  ReflectionRebuildsEveryService<ReflectionServiceV1, grpc::reflection::v1::ServerReflectionRequest,
                                 grpc::reflection::v1::ServerReflectionResponse>(&service, names);
  ReflectionServiceV1Alpha alpha(&authenticator, names, &timers, &clock);
  ReflectionRebuildsEveryService<ReflectionServiceV1Alpha, grpc::reflection::v1alpha::ServerReflectionRequest,
                                 grpc::reflection::v1alpha::ServerReflectionResponse>(&alpha, names);
}

TEST(Reflection, AnswersEachQuestionOfAStream) {
  testing::FakeClock clock;
  TimerQueue timers(&clock);
  Authenticator authenticator(Identity(), &clock);
  ReflectionServiceV1 service(&authenticator, {"penstock.v1.WorkService", "grpc.health.v1.Health"}, &timers, &clock);
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
