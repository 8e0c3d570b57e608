#pragma once

// grpc.health.v1: a small table of names with watchers, fed by the lifecycle.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/write_stream.h"

namespace penstock {

// Answers whether a service is serving, once or at every change.
//
// Model:     A name is serving or not; a name that was never set is unknown. Watchers of a name hear
//            its state at once and then each change; a slow one hears the latest only.
// Threads:   Any method from any thread.
// Lifecycle: Shutdown() ends every watch, so that the server can close; later ones end at once.
// Fails:     NOT_FOUND in Check for an unknown name; Watch says SERVICE_UNKNOWN and goes on.
class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  void SetServing(const std::string& service, bool serving) ABSL_LOCKS_EXCLUDED(mu_);
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context, const grpc::health::v1::HealthCheckRequest* request) override;

  // How many watches are open.
  int watchers() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Watcher;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  Status StatusNow(const std::string& service) const ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(Watcher* watcher) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mu_);
  // A watcher is in it from Watch() until its stream is done.
  std::map<Watcher*, std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
