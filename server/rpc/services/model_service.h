#pragma once

// ModelService: exported programs in the model root.

#include <memory>

#include "engine/base/job_thread.h"
#include "penstock/v1/model_service.grpc.pb.h"
#include "server/models/model_root.h"
#include "server/models/model_uploads.h"
#include "server/rpc/services/service_environment.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// What the calls work on. All of it outlives them.
struct ModelParts {
  ModelRoot* root = nullptr;
  JobThread* jobs = nullptr;        // files are written there only
  JobThread* reads = nullptr;       // what models hold is read there, however long it takes
  ModelUploads* uploads = nullptr;  // null: models can't be changed over the wire
};

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
  const ModelParts parts_;
};

// FEATURE_DISABLED, saying which flag the call needs; OK if the daemon has it.
absl::Status CheckModelsEnabled(const ModelParts& parts, bool changes);

// A model on the wire.
v1::Model ToProto(const ModelDescription& model, const ModelRoot& root, bool layers);

}  // namespace penstock
