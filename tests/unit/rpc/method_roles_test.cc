#include "server/rpc/method_roles.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "google/protobuf/descriptor.pb.h"
#include "inference/grpc_service.grpc.pb.h"
#include "penstock/v1/model_service.grpc.pb.h"
#include "penstock/v1/work_service.grpc.pb.h"

namespace penstock::testing {
namespace {

Role RoleOfMethod(const std::string& name) {
  const auto* method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
  EXPECT_NE(method, nullptr) << name;
  return RoleOf(*method).value();
}

TEST(MethodRoles, StandInTheProtosAndForOthersServicesInATable) {
  EXPECT_EQ(RoleOfMethod("penstock.v1.WorkService.Infer"), Role::kInfer);
  EXPECT_EQ(RoleOfMethod("penstock.v1.WorkService.TrainStep"), Role::kTrain);
  EXPECT_EQ(RoleOfMethod("penstock.v1.ModelService.UploadModel"), Role::kAdmin);
  EXPECT_EQ(RoleOfMethod("inference.GRPCInferenceService.ModelInfer"), Role::kInfer);
  EXPECT_EQ(RoleOfMethod("inference.GRPCInferenceService.ServerLive"), Role::kViewer);
}

TEST(MethodRoles, AMethodWithoutOneIsNamed) {
  google::protobuf::FileDescriptorProto file;
  file.set_name("more.proto");
  file.set_package("more");
  file.add_message_type()->set_name("Nothing");
  auto* service = file.add_service();
  service->set_name("MoreService");
  auto* method = service->add_method();
  method->set_name("Forgotten");
  method->set_input_type(".more.Nothing");
  method->set_output_type(".more.Nothing");
  google::protobuf::DescriptorPool pool;
  ASSERT_NE(pool.BuildFile(file), nullptr);
  const absl::Status fault = CheckMethodRoles({"more.MoreService"}, pool);
  EXPECT_EQ(ReasonOf(fault), "METHOD_WITHOUT_ROLE");
  EXPECT_EQ(ValuesOf(fault)["method"], "more.MoreService.Forgotten");
  EXPECT_EQ(ValuesOf(CheckMethodRoles({"more.Other"}, pool))["method"], "more.Other");
  EXPECT_TRUE(CheckMethodRoles({"penstock.v1.WorkService", "inference.GRPCInferenceService"}).ok());
}

// So that they can't stand on the port of clients.
TEST(MethodRoles, MethodsBetweenDaemonsHaveNone) {
  EXPECT_EQ(ReasonOf(CheckMethodRoles({"penstock.peer.v1.TransferService"})), "METHOD_WITHOUT_ROLE");
}

}  // namespace
}  // namespace penstock::testing
