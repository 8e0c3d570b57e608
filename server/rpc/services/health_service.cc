#include "server/rpc/services/health_service.h"

#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"
#include "server/rpc/call_context.h"
#include "server/rpc/unary_call.h"

namespace penstock {
namespace {

absl::Status Closing() { return Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is closing"); }

}  // namespace

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One open watch.
class HealthServiceImpl::Watcher final : public WriteStream {
 public:
  Watcher(HealthServiceImpl* health, grpc::CallbackServerContext* context)
      : WriteStream(context, health->timers_, health->clock_), health_(health) {}

  const std::string& service() const { return service_; }

  // Reads the request and tells the state. After Start().
  void Begin(const grpc::ByteBuffer& request) {
    guard().SetBusy(true);
    guard().Watch(context());
    Run([&] {
      PENSTOCK_RETURN_IF_ERROR(Accept(request));
      TellNow();
      return absl::OkStatus();
    });
  }

  // Tells the state if it is news, now or when the last message has left. The state is read here, not
  // given: of two changes at once the later is told last.
  void Tell() {
    Run([this] {
      TellNow();
      return absl::OkStatus();
    });
  }

 private:
  void TellNow() ABSL_LOCKS_EXCLUDED(mu_) {
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
    guard().SetBusy(false);  // the peer must take it
    Send(SerializeMessage(response));
  }

  absl::Status Accept(const grpc::ByteBuffer& bytes) {
    HealthCheckRequest request;
    PENSTOCK_RETURN_IF_ERROR(health_->gate_.Of("Watch").Enter(*context()).status());
    PENSTOCK_RETURN_IF_ERROR(ParseMessage(bytes, kMaxMessageBytes, &request));
    PENSTOCK_ASSIGN_OR_RETURN(StreamSlots::Slot slot, health_->slots_.Take(HostOf(*context())));
    Keep(std::move(slot));
    service_ = request.service();
    return health_->Remember(std::static_pointer_cast<Watcher>(shared_from_this()));
  }

  void OnSent() override {
    guard().Progress();
    guard().SetBusy(true);
    {
      absl::MutexLock lock(&mu_);
      busy_ = false;
    }
    TellNow();
  }

  void OnEnded() override { health_->Forget(this); }

  HealthServiceImpl* const health_;
  std::string service_;  // constant once it is remembered

  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<Status> told_ ABSL_GUARDED_BY(mu_);
};

HealthServiceImpl::Status HealthServiceImpl::StatusNow(const std::string& service) const {
  absl::MutexLock lock(&mu_);
  const auto found = serving_.find(service);
  if (found == serving_.end()) return HealthCheckResponse::SERVICE_UNKNOWN;
  return found->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthServiceImpl::SetServing(const std::string& service, bool serving) {
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

void HealthServiceImpl::Shutdown() {
  std::vector<std::shared_ptr<Watcher>> open;
  {
    absl::MutexLock lock(&mu_);
    shut_down_ = true;
    for (const auto& [pointer, watcher] : watchers_) open.push_back(watcher);
  }
  for (const auto& watcher : open) watcher->Close(Closing());
}

absl::StatusOr<HealthCheckResponse> HealthServiceImpl::Answer(const std::string& service) const {
  const Status status = StatusNow(service);
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    return Error(absl::StatusCode::kNotFound, "SERVICE_UNKNOWN",
                 "service: no such health service, got " + Shortened(service))
        .With("field", "service")
        .With("value", Shortened(service));
  }
  HealthCheckResponse response;
  response.set_status(status);
  return response;
}

grpc::ServerUnaryReactor* HealthServiceImpl::Check(grpc::CallbackServerContext* context,
                                                   const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<HealthCheckRequest, HealthCheckResponse>(
      gate_.Of("Check"), context, request, response, kMaxMessageBytes,
      [this](const auto& call) { call->Answer(Answer(call->request().service())); });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthServiceImpl::Watch(grpc::CallbackServerContext* context,
                                                                     const grpc::ByteBuffer* request) {
  auto watcher = std::make_shared<Watcher>(this, context);
  watcher->Start();
  watcher->Begin(*request);
  return watcher.get();
}

absl::Status HealthServiceImpl::Remember(const std::shared_ptr<Watcher>& watcher) {
  absl::MutexLock lock(&mu_);
  if (shut_down_) return Closing();
  watchers_.emplace(watcher.get(), watcher);
  return absl::OkStatus();
}

void HealthServiceImpl::Forget(Watcher* watcher) {
  std::shared_ptr<Watcher> last;
  absl::MutexLock lock(&mu_);
  if (auto found = watchers_.find(watcher); found != watchers_.end()) {
    last = std::move(found->second);
    watchers_.erase(found);
  }
}

int HealthServiceImpl::watchers() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(watchers_.size());
}

}  // namespace penstock
