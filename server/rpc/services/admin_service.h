#pragma once

// AdminService: the daemon itself.

#include <functional>

#include "absl/status/statusor.h"
#include "penstock/v1/admin_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Returns what the daemon is and what it holds, ends it, and says what it logs.
//
// Threads:   gRPC's callback threads; the closures must not block.
class AdminServiceImpl final
    : public v1::AdminService::WithRawCallbackMethod_GetServerInfo<v1::AdminService::WithRawCallbackMethod_Drain<
          v1::AdminService::WithRawCallbackMethod_SetLogLevel<v1::AdminService::Service>>> {
 public:
  using DrainFunction = std::function<absl::StatusOr<v1::DrainState>(const v1::DrainRequest&)>;
  AdminServiceImpl(const Authenticator* authenticator, std::function<v1::ServerInfo()> info, DrainFunction drain)
      : gate_(authenticator, v1::AdminService::service_full_name()), info_(std::move(info)), drain_(std::move(drain)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return ServeUnary<v1::GetServerInfoRequest, v1::ServerInfo>(gate_.Of("GetServerInfo"), context, request, response,
                                                                kControlMessageBytes,
                                                                [this](const auto& call) { call->Reply(info_()); });
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    return ServeUnary<v1::DrainRequest, v1::DrainState>(
        gate_.Of("Drain"), context, request, response, kControlMessageBytes,
        [this](const auto& call) { call->Answer(drain_(call->request())); });
  }

  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;

 private:
  const ServiceGate gate_;
  const std::function<v1::ServerInfo()> info_;
  const DrainFunction drain_;
};

}  // namespace penstock
