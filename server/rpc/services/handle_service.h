#pragma once

// HandleService: results by name.

#include <memory>

#include "penstock/v1/handle_service.grpc.pb.h"
#include "server/rpc/handle_sharing.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/tensor_uploads.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Turns calls about handles into calls on the store.
//
// Threads:   gRPC's callback threads; no method blocks.
// Lifecycle: Close() when the server has ended, before the handle store closes.
class HandleServiceImpl final
    : public v1::HandleService::WithRawCallbackMethod_PutTensors<
          v1::HandleService::WithRawCallbackMethod_FetchHandle<v1::HandleService::WithRawCallbackMethod_WaitHandles<
              v1::HandleService::WithRawCallbackMethod_GetHandle<v1::HandleService::WithRawCallbackMethod_ListHandles<
                  v1::HandleService::WithRawCallbackMethod_RenewHandles<
                      v1::HandleService::WithRawCallbackMethod_ShareHandle<
                          v1::HandleService::WithRawCallbackMethod_ReleaseHandles<
                              v1::HandleService::WithRawCallbackMethod_CancelHandles<
                                  v1::HandleService::Service>>>>>>>>> {
 public:
  explicit HandleServiceImpl(const ServiceEnvironment& environment);

  void Close() { puts_->Close(); }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PutTensors(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchHandle(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* WaitHandles(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetHandle(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListHandles(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RenewHandles(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ShareHandle(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ReleaseHandles(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CancelHandles(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;

 private:
  absl::Status Wait(const UnaryCallPtr<v1::WaitHandlesRequest, v1::WaitHandlesResponse>& call);
  absl::StatusOr<v1::ListHandlesResponse> List(const Identity& identity, const v1::ListHandlesRequest& request);
  absl::StatusOr<v1::RenewHandlesResponse> Renew(const std::string& caller, const v1::RenewHandlesRequest& request);
  absl::StatusOr<v1::Handle> Share(const std::string& caller, const v1::ShareHandleRequest& request);
  absl::StatusOr<v1::CancelHandlesResponse> Cancel(const std::string& caller, const v1::CancelHandlesRequest& request);

  const ServiceEnvironment environment_;
  const ServiceGate gate_{environment_.authenticator, v1::HandleService::service_full_name()};
  const std::shared_ptr<TensorUploads> puts_;
  HandleSharing sharing_;
};

}  // namespace penstock
