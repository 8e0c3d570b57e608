#pragma once

// PipelineService: create, plan, get, list, update, unload, load, delete.

#include "engine/serve/pipeline_table.h"
#include "penstock/v1/pipeline_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Turns calls about pipelines into calls on the table.
//
// Threads:   gRPC's callback threads; no method blocks, the table calls back later.
class PipelineServiceImpl final
    : public v1::PipelineService::WithRawCallbackMethod_CreatePipeline<
          v1::PipelineService::WithRawCallbackMethod_PlanPipeline<
              v1::PipelineService::WithRawCallbackMethod_GetPipeline<
                  v1::PipelineService::WithRawCallbackMethod_ListPipelines<
                      v1::PipelineService::WithRawCallbackMethod_UpdateOptimizer<
                          v1::PipelineService::WithRawCallbackMethod_UpdatePipeline<
                              v1::PipelineService::WithRawCallbackMethod_UnloadPipeline<
                                  v1::PipelineService::WithRawCallbackMethod_LoadPipeline<
                                      v1::PipelineService::WithRawCallbackMethod_DeletePipeline<
                                          v1::PipelineService::Service>>>>>>>>> {
 public:
  explicit PipelineServiceImpl(const ServiceEnvironment& environment) : environment_(environment) {}

  grpc::ServerUnaryReactor* CreatePipeline(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* PlanPipeline(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetPipeline(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListPipelines(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* UpdateOptimizer(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* UpdatePipeline(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* UnloadPipeline(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* LoadPipeline(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeletePipeline(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;

 private:
  absl::Status Create(const UnaryCallPtr<v1::CreatePipelineRequest, v1::Pipeline>& call);
  absl::Status Search(const UnaryCallPtr<v1::PlanPipelineRequest, v1::PlanPipelineResponse>& call);
  // Those after `after` that the caller may know of, at most `limit`.
  std::vector<PipelineEntry> Seen(const Identity& identity, std::string after, int limit) const;
  absl::StatusOr<v1::ListPipelinesResponse> List(const Identity& identity, const v1::ListPipelinesRequest& request);
  absl::Status Update(const UnaryCallPtr<v1::UpdateOptimizerRequest, v1::Pipeline>& call);
  absl::Status Replan(const UnaryCallPtr<v1::UpdatePipelineRequest, v1::Pipeline>& call);
  absl::Status Unload(const UnaryCallPtr<v1::UnloadPipelineRequest, v1::Pipeline>& call);
  absl::Status Load(const UnaryCallPtr<v1::LoadPipelineRequest, v1::Pipeline>& call);
  absl::Status Delete(const UnaryCallPtr<v1::DeletePipelineRequest, v1::DeletePipelineResponse>& call);

  const ServiceEnvironment environment_;
  const ServiceGate gate_{environment_.authenticator, v1::PipelineService::service_full_name()};
};

}  // namespace penstock
