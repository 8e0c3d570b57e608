#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "penstock/v1/admin.pb.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/services/health_service.h"
#include "server/rpc/services/inference_service.h"
#include "server/rpc/services/journal_service.h"
#include "server/rpc/services/model_service.h"

namespace penstock {

class HandleServiceImpl;
class InsightServiceImpl;
class JobThread;
class WorkServiceImpl;

// The services of the daemon's gRPC port. The constructor has a line for each, which makes, names and registers it.
//
// Lifecycle: Shutdown() ends the streams that wait for something, so that the server can end; Close() after it has
//            ended, before the handle store closes.
class ApiServices {
 public:
  // What the services work on. All of it outlives them.
  struct Parts {
    ServiceEnvironment environment;
    JobThread* trace_jobs = nullptr;
    JournalParts journals = {};
    ModelParts models;
    std::function<v1::ServerInfo()> info;
    std::function<absl::StatusOr<v1::DrainState>(const v1::DrainRequest&)> drain;
    InferenceServiceImpl::Options inference;
  };

  explicit ApiServices(const Parts& parts);
  ~ApiServices();

  // Full names, as in "penstock.v1.WorkService".
  const std::vector<std::string>& names() const { return names_; }
  std::vector<grpc::Service*> all() const;
  HealthServiceImpl* health() const { return health_; }

  void Shutdown();
  void Close();

 private:
  template <typename Service, typename... Arguments>
  Service* Add(std::string name, Arguments&&... arguments) {
    auto service = std::make_unique<Service>(std::forward<Arguments>(arguments)...);
    Service* const made = service.get();
    names_.push_back(std::move(name));
    services_.push_back(std::move(service));
    return made;
  }

  std::vector<std::string> names_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  HandleServiceImpl* handles_;
  InferenceServiceImpl* inference_;
  InsightServiceImpl* insight_;
  HealthServiceImpl* health_;
  WorkServiceImpl* work_;
};

}  // namespace penstock
