#pragma once

// StateService: checkpoints and parameters.

#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint_file.h"
#include "penstock/v1/state_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Turns calls about weights into calls on a served pipeline, which replies when the work is done.
//
// Threads:   gRPC's callback threads; no method blocks or touches the disk.
class StateServiceImpl final : public v1::StateService::WithRawCallbackMethod_SaveCheckpoint<
                                   v1::StateService::WithRawCallbackMethod_CopyCheckpoint<
                                       v1::StateService::WithRawCallbackMethod_RestoreCheckpoint<
                                           v1::StateService::WithRawCallbackMethod_DeleteCheckpoint<
                                               v1::StateService::WithRawCallbackMethod_PublishCheckpoint<
                                                   v1::StateService::WithRawCallbackMethod_ListCheckpoints<
                                                       v1::StateService::WithRawCallbackMethod_ReadParameters<
                                                           v1::StateService::WithRawCallbackMethod_WriteParameters<
                                                               v1::StateService::Service>>>>>>>> {
 public:
  explicit StateServiceImpl(const ServiceEnvironment& environment) : environment_(environment) {}

  grpc::ServerUnaryReactor* SaveCheckpoint(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CopyCheckpoint(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RestoreCheckpoint(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteCheckpoint(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* PublishCheckpoint(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ReadParameters(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* WriteParameters(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;

 private:
  absl::Status Save(const UnaryCallPtr<v1::SaveCheckpointRequest, v1::Checkpoint>& call);
  absl::Status Copy(const UnaryCallPtr<v1::CopyCheckpointRequest, v1::Checkpoint>& call);
  absl::Status Restore(const UnaryCallPtr<v1::RestoreCheckpointRequest, v1::RestoreCheckpointResponse>& call);
  absl::Status Delete(const UnaryCallPtr<v1::DeleteCheckpointRequest, v1::DeleteCheckpointResponse>& call);
  absl::Status Publish(const UnaryCallPtr<v1::PublishCheckpointRequest, v1::Pipeline>& call);
  // Whether a pipeline of this name exists, in whatever state.
  bool Exists(const std::string& pipeline) const;
  // Those after `after`, of all pipelines or of one, at most `limit`.
  absl::StatusOr<std::vector<CheckpointInfo>> Checkpoints(const Identity& identity,
                                                          const v1::ListCheckpointsRequest& request,
                                                          const std::string& after, int limit) const;
  absl::Status Write(const UnaryCallPtr<v1::WriteParametersRequest, v1::WriteParametersResponse>& call);
  absl::StatusOr<v1::ListCheckpointsResponse> List(const Identity& identity, const v1::ListCheckpointsRequest& request);

  const ServiceEnvironment environment_;
  const ServiceGate gate_{environment_.authenticator, v1::StateService::service_full_name()};
};

}  // namespace penstock
