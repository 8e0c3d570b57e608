#pragma once

// ModelService: exported programs in the model root.

#include <memory>

#include "penstock/v1/model_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/model_parts.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Turns calls about models into jobs.
//
// Threads:   gRPC's callback threads; no method blocks.
// Fails:     UNIMPLEMENTED / FEATURE_DISABLED without a model root, or, for what changes it, without uploads.
class ModelServiceImpl final
    : public v1::ModelService::WithRawCallbackMethod_UploadModel<
          v1::ModelService::WithRawCallbackMethod_GetModel<v1::ModelService::WithRawCallbackMethod_ListModels<
              v1::ModelService::WithRawCallbackMethod_DeleteModel<v1::ModelService::Service>>>> {
 public:
  ModelServiceImpl(const ServiceEnvironment& environment, const ModelParts& parts)
      : environment_(environment), parts_(parts) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* UploadModel(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteModel(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;

 private:
  absl::Status Get(const UnaryCallPtr<v1::GetModelRequest, v1::Model>& call);
  absl::Status List(const UnaryCallPtr<v1::ListModelsRequest, v1::ListModelsResponse>& call);
  absl::Status Delete(const UnaryCallPtr<v1::DeleteModelRequest, v1::DeleteModelResponse>& call);

  const ServiceEnvironment environment_;
  const ServiceGate gate_{environment_.authenticator, v1::ModelService::service_full_name()};
  const ModelParts parts_;
};

}  // namespace penstock
