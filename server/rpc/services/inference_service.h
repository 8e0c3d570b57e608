#pragma once

// inference.GRPCInferenceService: the core of the Open Inference Protocol. A pipeline is a model, and
// its only version is 1.

#include <functional>
#include <memory>
#include <string>

#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Lets clients of other servers infer without change.
//
// Threads:   gRPC's callback threads; no method blocks.
// Fails:     PIPELINE_NOT_FOUND, MODEL_NOT_FOUND for another version; as Infer otherwise.
class InferenceServiceImpl final
    : public inference::GRPCInferenceService::WithRawCallbackMethod_ServerLive<
          inference::GRPCInferenceService::WithRawCallbackMethod_ServerReady<
              inference::GRPCInferenceService::WithRawCallbackMethod_ModelReady<
                  inference::GRPCInferenceService::WithRawCallbackMethod_ServerMetadata<
                      inference::GRPCInferenceService::WithRawCallbackMethod_ModelMetadata<
                          inference::GRPCInferenceService::WithRawCallbackMethod_ModelInfer<
                              inference::GRPCInferenceService::Service>>>>>> {
 public:
  struct Options {
    std::string version;
    std::function<bool()> ready;  // may the server be sent work?
  };

  InferenceServiceImpl(const ServiceEnvironment& environment, Options options)
      : environment_(environment), options_(std::move(options)) {}

  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  absl::StatusOr<std::shared_ptr<ServedPipeline>> FindModel(const Identity& identity, const std::string& name,
                                                            const std::string& version, const char* field) const;
  absl::Status Infer(const std::shared_ptr<UnaryCallBase>& call, const grpc::ByteBuffer& request);

  const ServiceEnvironment environment_;
  const ServiceGate gate_{environment_.authenticator, inference::GRPCInferenceService::service_full_name()};
  const Options options_;
};

}  // namespace penstock
