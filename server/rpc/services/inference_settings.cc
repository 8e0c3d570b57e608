#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/log_level.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"
#include "server/rpc/services/inference_service.h"

// Settings, which can be read, and the calls of the protocol that are refused.

namespace penstock {
namespace {

absl::Status Disabled(const std::string& problem) {
  return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED", problem);
}

constexpr char kNoSharedMemory[] = "shared memory is not supported; send tensors in the request";

// Fails unless nothing is to be set.
template <typename Settings>
absl::Status CheckReadOnly(const Settings& settings, const char* instead) {
  for (const auto& [key, value] : settings) {
    const std::string field = absl::StrCat("settings[", Shortened(key), "]");
    return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
                 absl::StrCat(field, ": can't be set here; ", instead))
        .With("field", field);
  }
  return absl::OkStatus();
}

absl::StatusOr<inference::LogSettingsResponse> ReadLogSettings(const inference::LogSettingsRequest& request) {
  PENSTOCK_RETURN_IF_ERROR(CheckReadOnly(request.settings(), "the page /logz of --admin-listen sets the level"));
  const LogLevel level = CurrentLogLevel();
  inference::LogSettingsResponse answer;
  auto& settings = *answer.mutable_settings();
  settings["log_file"].set_string_param("");
  settings["log_info"].set_bool_param(level <= LogLevel::kInfo);
  settings["log_warning"].set_bool_param(level <= LogLevel::kWarning);
  settings["log_error"].set_bool_param(true);
  settings["log_verbose_level"].set_uint32_param(level == LogLevel::kDebug ? 1 : 0);
  settings["log_format"].set_string_param(std::string(NameOf(CurrentLogFormat())));
  return answer;
}

}  // namespace

absl::StatusOr<inference::TraceSettingResponse> InferenceServiceImpl::TraceSettings(
    const Identity& identity, const inference::TraceSettingRequest& request) const {
  PENSTOCK_RETURN_IF_ERROR(CheckReadOnly(request.settings(), "ExportTrace records what a pipeline does"));
  if (!request.model_name().empty()) {
    PENSTOCK_RETURN_IF_ERROR(FindModel(identity, request.model_name(), "", "model_name").status());
  }
  inference::TraceSettingResponse answer;
  (*answer.mutable_settings())["trace_level"].add_value("OFF");
  return answer;
}

grpc::ServerUnaryReactor* InferenceServiceImpl::TraceSetting(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request,
                                                             grpc::ByteBuffer* response) {
  return ServeUnary<inference::TraceSettingRequest, inference::TraceSettingResponse>(
      gate_.Of("TraceSetting"), context, request, response, kControlMessageBytes,
      [this](const auto& call) { call->Answer(TraceSettings(call->identity(), call->request())); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::LogSettings(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<inference::LogSettingsRequest, inference::LogSettingsResponse>(
      gate_.Of("LogSettings"), context, request, response, kControlMessageBytes,
      [](const auto& call) { call->Answer(ReadLogSettings(call->request())); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::SystemSharedMemoryStatus(grpc::CallbackServerContext* context,
                                                                         const grpc::ByteBuffer* request,
                                                                         grpc::ByteBuffer* response) {
  return ServeUnary<inference::SystemSharedMemoryStatusRequest, inference::SystemSharedMemoryStatusResponse>(
      gate_.Of("SystemSharedMemoryStatus"), context, request, response, kControlMessageBytes,
      [](const auto& call) { call->Fail(Disabled(kNoSharedMemory)); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::SystemSharedMemoryRegister(grpc::CallbackServerContext* context,
                                                                           const grpc::ByteBuffer* request,
                                                                           grpc::ByteBuffer* response) {
  return ServeUnary<inference::SystemSharedMemoryRegisterRequest, inference::SystemSharedMemoryRegisterResponse>(
      gate_.Of("SystemSharedMemoryRegister"), context, request, response, kControlMessageBytes,
      [](const auto& call) { call->Fail(Disabled(kNoSharedMemory)); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::SystemSharedMemoryUnregister(grpc::CallbackServerContext* context,
                                                                             const grpc::ByteBuffer* request,
                                                                             grpc::ByteBuffer* response) {
  return ServeUnary<inference::SystemSharedMemoryUnregisterRequest, inference::SystemSharedMemoryUnregisterResponse>(
      gate_.Of("SystemSharedMemoryUnregister"), context, request, response, kControlMessageBytes,
      [](const auto& call) { call->Fail(Disabled(kNoSharedMemory)); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::CudaSharedMemoryStatus(grpc::CallbackServerContext* context,
                                                                       const grpc::ByteBuffer* request,
                                                                       grpc::ByteBuffer* response) {
  return ServeUnary<inference::CudaSharedMemoryStatusRequest, inference::CudaSharedMemoryStatusResponse>(
      gate_.Of("CudaSharedMemoryStatus"), context, request, response, kControlMessageBytes,
      [](const auto& call) { call->Fail(Disabled(kNoSharedMemory)); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::CudaSharedMemoryRegister(grpc::CallbackServerContext* context,
                                                                         const grpc::ByteBuffer* request,
                                                                         grpc::ByteBuffer* response) {
  return ServeUnary<inference::CudaSharedMemoryRegisterRequest, inference::CudaSharedMemoryRegisterResponse>(
      gate_.Of("CudaSharedMemoryRegister"), context, request, response, kControlMessageBytes,
      [](const auto& call) { call->Fail(Disabled(kNoSharedMemory)); });
}

grpc::ServerUnaryReactor* InferenceServiceImpl::CudaSharedMemoryUnregister(grpc::CallbackServerContext* context,
                                                                           const grpc::ByteBuffer* request,
                                                                           grpc::ByteBuffer* response) {
  return ServeUnary<inference::CudaSharedMemoryUnregisterRequest, inference::CudaSharedMemoryUnregisterResponse>(
      gate_.Of("CudaSharedMemoryUnregister"), context, request, response, kControlMessageBytes,
      [](const auto& call) { call->Fail(Disabled(kNoSharedMemory)); });
}

}  // namespace penstock
