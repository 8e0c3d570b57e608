#include "server/rpc/method_roles.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "penstock/v1/role.pb.h"

namespace penstock {
namespace {

// Services that have no options of ours. A method that is added there needs a row here.
const std::map<std::string, Role>& OthersRoles() {
  static const auto* table = new std::map<std::string, Role>{
      {"inference.GRPCInferenceService.ServerLive", Role::kViewer},
      {"inference.GRPCInferenceService.ServerReady", Role::kViewer},
      {"inference.GRPCInferenceService.ServerMetadata", Role::kViewer},
      {"inference.GRPCInferenceService.ModelReady", Role::kViewer},
      {"inference.GRPCInferenceService.ModelMetadata", Role::kViewer},
      {"inference.GRPCInferenceService.ModelInfer", Role::kInfer},
      {"inference.GRPCInferenceService.ModelStreamInfer", Role::kInfer},
      {"inference.GRPCInferenceService.ModelConfig", Role::kViewer},
      {"inference.GRPCInferenceService.ModelStatistics", Role::kViewer},
      {"inference.GRPCInferenceService.RepositoryIndex", Role::kViewer},
      {"inference.GRPCInferenceService.RepositoryModelLoad", Role::kTrain},
      {"inference.GRPCInferenceService.RepositoryModelUnload", Role::kTrain},
      {"inference.GRPCInferenceService.SystemSharedMemoryStatus", Role::kViewer},
      {"inference.GRPCInferenceService.SystemSharedMemoryRegister", Role::kInfer},
      {"inference.GRPCInferenceService.SystemSharedMemoryUnregister", Role::kInfer},
      {"inference.GRPCInferenceService.CudaSharedMemoryStatus", Role::kViewer},
      {"inference.GRPCInferenceService.CudaSharedMemoryRegister", Role::kInfer},
      {"inference.GRPCInferenceService.CudaSharedMemoryUnregister", Role::kInfer},
      {"inference.GRPCInferenceService.TraceSetting", Role::kViewer},
      {"inference.GRPCInferenceService.LogSettings", Role::kViewer},
      {"grpc.health.v1.Health.Check", Role::kViewer},
      {"grpc.health.v1.Health.Watch", Role::kViewer},
      {"grpc.reflection.v1.ServerReflection.ServerReflectionInfo", Role::kViewer},
      {"grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo", Role::kViewer},
  };
  return *table;
}

absl::Status WithoutRole(const std::string& name) {
  return Error(absl::StatusCode::kFailedPrecondition, "METHOD_WITHOUT_ROLE",
               absl::StrCat("no role may call ", name, ": its .proto, or the table of other services, has none"))
      .With("method", name);
}

}  // namespace

std::optional<Role> RoleOf(const google::protobuf::MethodDescriptor& method) {
  switch (method.options().GetExtension(v1::role)) {
    case v1::ROLE_VIEWER:
      return Role::kViewer;
    case v1::ROLE_INFER:
      return Role::kInfer;
    case v1::ROLE_TRAIN:
      return Role::kTrain;
    case v1::ROLE_ADMIN:
      return Role::kAdmin;
    default:
      break;
  }
  const auto found = OthersRoles().find(method.full_name());
  return found == OthersRoles().end() ? std::nullopt : std::optional(found->second);
}

bool ChangesState(const google::protobuf::MethodDescriptor& method) {
  static const auto* others = new std::set<std::string>{"inference.GRPCInferenceService.RepositoryModelLoad",
                                                        "inference.GRPCInferenceService.RepositoryModelUnload"};
  return others->contains(method.full_name()) || method.options().GetExtension(v1::changes_state);
}

absl::Status CheckMethodRoles(const std::vector<std::string>& services, const google::protobuf::DescriptorPool& pool) {
  for (const std::string& name : services) {
    const google::protobuf::ServiceDescriptor* service = pool.FindServiceByName(name);
    if (service == nullptr) return WithoutRole(name);
    for (int i = 0; i < service->method_count(); ++i) {
      if (!RoleOf(*service->method(i)).has_value()) return WithoutRole(service->method(i)->full_name());
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
