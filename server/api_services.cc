#include "server/api_services.h"

#include "server/rpc/services/admin_service.h"
#include "server/rpc/services/handle_service.h"
#include "server/rpc/services/insight_service.h"
#include "server/rpc/services/pipeline_service.h"
#include "server/rpc/services/reflection_service.h"
#include "server/rpc/services/state_service.h"
#include "server/rpc/services/work_service.h"

namespace penstock {

ApiServices::ApiServices(const Parts& parts) {
  const ServiceEnvironment& environment = parts.environment;
  Add<AdminServiceImpl>(v1::AdminService::service_full_name(), environment.authenticator, parts.info, parts.drain);
  handles_ = Add<HandleServiceImpl>(v1::HandleService::service_full_name(), environment);
  insight_ = Add<InsightServiceImpl>(v1::InsightService::service_full_name(), environment, parts.trace_jobs);
  Add<JournalServiceImpl>(v1::JournalService::service_full_name(), environment, parts.journals);
  Add<ModelServiceImpl>(v1::ModelService::service_full_name(), environment, parts.models);
  Add<PipelineServiceImpl>(v1::PipelineService::service_full_name(), environment);
  Add<StateServiceImpl>(v1::StateService::service_full_name(), environment);
  work_ = Add<WorkServiceImpl>(v1::WorkService::service_full_name(), environment);
  inference_ =
      Add<InferenceServiceImpl>(inference::GRPCInferenceService::service_full_name(), environment, parts.inference);
  health_ = Add<HealthServiceImpl>(grpc::health::v1::Health::service_full_name(), environment.authenticator,
                                   environment.timers, environment.clock);
  // Reflection lists itself too.
  const std::string reflection = grpc::reflection::v1::ServerReflection::service_full_name();
  const std::string reflection_alpha = grpc::reflection::v1alpha::ServerReflection::service_full_name();
  std::vector<std::string> names = names_;
  names.insert(names.end(), {reflection, reflection_alpha});
  Add<ReflectionServiceV1>(reflection, environment.authenticator, names, environment.timers, environment.clock);
  Add<ReflectionServiceV1Alpha>(reflection_alpha, environment.authenticator, names, environment.timers,
                                environment.clock);
}

ApiServices::~ApiServices() = default;

std::vector<grpc::Service*> ApiServices::all() const {
  std::vector<grpc::Service*> all;
  for (const auto& service : services_) all.push_back(service.get());
  return all;
}

void ApiServices::Shutdown() {
  health_->Shutdown();
  inference_->Shutdown();
  insight_->Shutdown();
  work_->Shutdown();
}

void ApiServices::Close() {
  handles_->Close();
  work_->Close();
}

}  // namespace penstock
