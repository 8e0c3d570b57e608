#pragma once

// inference.GRPCInferenceService: the Open Inference Protocol. A pipeline is a model; its versions are its live
// weights, 1, and those that are published.
//
//   inference_service.cc   server, metadata, inference      inference_models.cc   what there is, and its statistics
//   inference_settings.cc  settings, and what is refused

#include <functional>
#include <memory>
#include <string>

#include "inference/grpc_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/raw_methods.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/infer_stream.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Lets clients of other servers infer without change.
//
// Threads:   gRPC's callback threads; no method blocks.
// Fails:     PIPELINE_NOT_FOUND, MODEL_NOT_FOUND for another version; as Infer otherwise. FEATURE_DISABLED for what
//            there is not: shared memory, settings to be set. Load and unload: as PipelineTable's.
class InferenceServiceImpl final
    : public WithRawMethods<inference::GRPCInferenceService::Service,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ServerLive,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ServerReady,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ServerMetadata,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ModelReady,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ModelMetadata,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ModelInfer,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ModelStreamInfer,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ModelConfig,
                            inference::GRPCInferenceService::WithRawCallbackMethod_ModelStatistics,
                            inference::GRPCInferenceService::WithRawCallbackMethod_RepositoryIndex,
                            inference::GRPCInferenceService::WithRawCallbackMethod_RepositoryModelLoad,
                            inference::GRPCInferenceService::WithRawCallbackMethod_RepositoryModelUnload,
                            inference::GRPCInferenceService::WithRawCallbackMethod_SystemSharedMemoryStatus,
                            inference::GRPCInferenceService::WithRawCallbackMethod_SystemSharedMemoryRegister,
                            inference::GRPCInferenceService::WithRawCallbackMethod_SystemSharedMemoryUnregister,
                            inference::GRPCInferenceService::WithRawCallbackMethod_CudaSharedMemoryStatus,
                            inference::GRPCInferenceService::WithRawCallbackMethod_CudaSharedMemoryRegister,
                            inference::GRPCInferenceService::WithRawCallbackMethod_CudaSharedMemoryUnregister,
                            inference::GRPCInferenceService::WithRawCallbackMethod_TraceSetting,
                            inference::GRPCInferenceService::WithRawCallbackMethod_LogSettings> {
 public:
  struct Options {
    std::string version;
    std::function<bool()> ready;  // may the server be sent work?
  };

  InferenceServiceImpl(const ServiceEnvironment& environment, Options options)
      : environment_(environment), options_(std::move(options)) {}

  // Ends every stream, so that the server can close.
  void Shutdown() { streams_.Shutdown(); }

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
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ModelStreamInfer(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelStatistics(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RepositoryIndex(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RepositoryModelLoad(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryStatus(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryRegister(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryUnregister(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryStatus(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request,
                                                   grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryRegister(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryUnregister(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* TraceSetting(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* LogSettings(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;

 private:
  absl::StatusOr<std::shared_ptr<ServedPipeline>> FindModel(const Identity& identity, const std::string& name,
                                                            const std::string& version, const char* field) const;
  // The call is answered later.
  absl::Status Infer(const std::shared_ptr<AnsweredCall>& call, const grpc::ByteBuffer& request);
  absl::StatusOr<inference::ModelStatisticsResponse> Statistics(const Identity& identity,
                                                                const inference::ModelStatisticsRequest& request) const;
  absl::StatusOr<inference::RepositoryIndexResponse> Index(const Identity& identity,
                                                           const inference::RepositoryIndexRequest& request) const;
  // The calls are answered later.
  absl::Status Load(
      const UnaryCallPtr<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>& call) const;
  absl::Status Unload(const UnaryCallPtr<inference::RepositoryModelUnloadRequest,
                                         inference::RepositoryModelUnloadResponse>& call) const;
  absl::StatusOr<inference::TraceSettingResponse> TraceSettings(const Identity& identity,
                                                                const inference::TraceSettingRequest& request) const;

  const ServiceEnvironment environment_;
  const ServiceGate gate_{environment_.authenticator, inference::GRPCInferenceService::service_full_name()};
  const Options options_;
  RequestStreams streams_{"inference_streams"};
};

}  // namespace penstock
