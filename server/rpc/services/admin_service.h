#pragma once

// AdminService: the daemon itself.

#include <functional>

#include "penstock/v1/admin_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Returns what the daemon is and what it holds.
//
// Threads:   gRPC's callback threads; the closure must not block.
class AdminServiceImpl final : public v1::AdminService::WithRawCallbackMethod_GetServerInfo<v1::AdminService::Service> {
 public:
  AdminServiceImpl(const Authenticator* authenticator, std::function<v1::ServerInfo()> info)
      : gate_(authenticator, v1::AdminService::service_full_name()), info_(std::move(info)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override {
    return ServeUnary<v1::GetServerInfoRequest, v1::ServerInfo>(gate_.Of("GetServerInfo"), context, request, response,
                                                                kControlMessageBytes,
                                                                [this](const auto& call) { call->Reply(info_()); });
  }

 private:
  const ServiceGate gate_;
  const std::function<v1::ServerInfo()> info_;
};

}  // namespace penstock
