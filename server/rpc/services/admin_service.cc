#include "server/rpc/services/admin_service.h"

#include "absl/strings/str_cat.h"
#include "engine/base/log_level.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

v1::LogLevel ToProto(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return v1::LOG_LEVEL_DEBUG;
    case LogLevel::kInfo:
      return v1::LOG_LEVEL_INFO;
    case LogLevel::kWarning:
      return v1::LOG_LEVEL_WARNING;
    case LogLevel::kError:
      return v1::LOG_LEVEL_ERROR;
  }
  return v1::LOG_LEVEL_UNSPECIFIED;
}

absl::StatusOr<v1::SetLogLevelResponse> ChangeLogLevel(const v1::SetLogLevelRequest& request) {
  v1::SetLogLevelResponse response;
  response.set_now(request.level());
  switch (request.level()) {
    case v1::LOG_LEVEL_UNSPECIFIED:
      response.set_before(ToProto(CurrentLogLevel()));
      response.set_now(response.before());
      return response;
    case v1::LOG_LEVEL_DEBUG:
      response.set_before(ToProto(SetLogLevel(LogLevel::kDebug)));
      return response;
    case v1::LOG_LEVEL_INFO:
      response.set_before(ToProto(SetLogLevel(LogLevel::kInfo)));
      return response;
    case v1::LOG_LEVEL_WARNING:
      response.set_before(ToProto(SetLogLevel(LogLevel::kWarning)));
      return response;
    case v1::LOG_LEVEL_ERROR:
      response.set_before(ToProto(SetLogLevel(LogLevel::kError)));
      return response;
    default:
      return InvalidField("level", "must be DEBUG, INFO, WARNING or ERROR",
                          absl::StrCat(static_cast<int>(request.level())));
  }
}

}  // namespace

grpc::ServerUnaryReactor* AdminServiceImpl::SetLogLevel(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::SetLogLevelRequest, v1::SetLogLevelResponse>(
      gate_.Of("SetLogLevel"), context, request, response, kControlMessageBytes,
      [](const auto& call) { call->Answer(ChangeLogLevel(call->request())); });
}

}  // namespace penstock
