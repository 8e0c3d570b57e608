#include "server/rpc/health_service.h"

#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One open watch.
class HealthService::Watcher final : public WriteStream<HealthCheckResponse> {
 public:
  Watcher(HealthService* health, std::string service) : health_(health), service_(std::move(service)) {}

  const std::string& service() const { return service_; }

  // Tells the state if it is news, now or when the last message has left. The state is read here, not
  // given: of two changes at once the later is told last.
  void Tell() ABSL_LOCKS_EXCLUDED(mu_) {
    HealthCheckResponse response;
    {
      absl::MutexLock lock(&mu_);
      if (busy_) return;
      const Status now = health_->StatusNow(service_);
      if (now == told_) return;
      busy_ = true;
      told_ = now;
      response.set_status(now);
    }
    Send(std::move(response));
  }

 private:
  void OnSent() override {
    {
      absl::MutexLock lock(&mu_);
      busy_ = false;
    }
    Tell();
  }

  void OnEnded() override { health_->Forget(this); }

  HealthService* const health_;
  const std::string service_;

  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Status> told_ ABSL_GUARDED_BY(mu_);
};

HealthService::Status HealthService::StatusNow(const std::string& service) const {
  absl::MutexLock lock(&mu_);
  const auto found = serving_.find(service);
  if (found == serving_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return found->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::SetServing(const std::string& service, bool serving) {
  std::vector<std::shared_ptr<Watcher>> told;
  {
    absl::MutexLock lock(&mu_);
    serving_[service] = serving;
    for (const auto& [pointer, watcher] : watchers_) {
      if (watcher->service() == service) told.push_back(watcher);
    }
  }
  for (const auto& watcher : told) watcher->Tell();
}

void HealthService::Shutdown() {
  std::vector<std::shared_ptr<Watcher>> open;
  {
    absl::MutexLock lock(&mu_);
    shut_down_ = true;
    for (const auto& [pointer, watcher] : watchers_) open.push_back(watcher);
  }
  const absl::Status closing = Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is closing");
  for (const auto& watcher : open) watcher->Close(closing);
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context, const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Status status = StatusNow(request->service());
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish(ToGrpcStatus(Error(absl::StatusCode::kNotFound, "SERVICE_UNKNOWN",
                                       "service: no such health service, got " + Shortened(request->service()))
                                     .With("field", "service")
                                     .With("value", Shortened(request->service()))));
    return reactor;
  }
  response->set_status(status);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(grpc::CallbackServerContext*,
                                                                    const HealthCheckRequest* request) {
  auto watcher = std::make_shared<Watcher>(this, request->service());
  watcher->Start();
  bool open;
  {
    absl::MutexLock lock(&mu_);
    open = !shut_down_;
    watchers_.emplace(watcher.get(), watcher);
  }
  if (open) {
    watcher->Tell();
  } else {
    watcher->Close(Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is closing"));
  }
  return watcher.get();
}

void HealthService::Forget(Watcher* watcher) {
  std::shared_ptr<Watcher> last;
  absl::MutexLock lock(&mu_);
  if (auto found = watchers_.find(watcher); found != watchers_.end()) {
    last = std::move(found->second);
    watchers_.erase(found);
  }
}

int HealthService::watchers() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(watchers_.size());
}

}  // namespace penstock
