#pragma once

// grpc.health.v1: a small table of names with watchers, fed by the lifecycle.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/streams/stream_slots.h"
#include "server/rpc/streams/write_stream.h"

namespace penstock {

class Clock;
class TimerQueue;

// Returns whether a service is serving, once or at every change.
//
// Model:     A name is serving or not; a name that was never set is unknown. Watchers of a name hear
//            its state at once and then each change; a slow one hears the latest only, and one that takes
//            no message for StallGuard::kPatience is given up.
// Owns:      nothing; TimerQueue and Clock outlive it.
// Threads:   Any method from any thread.
// Lifecycle: Shutdown() ends every watch, so that the server can close; later ones end at once.
// Fails:     NOT_FOUND in Check for an unknown name; Watch says SERVICE_UNKNOWN and goes on.
//            RESOURCE_EXHAUSTED / MESSAGE_TOO_LARGE above kMaxMessageBytes, STREAM_LIMIT, and
//            CALLER_QUOTA above a host's share of kMaxWatches.
class HealthServiceImpl final
    : public grpc::health::v1::Health::WithRawCallbackMethod_Check<
          grpc::health::v1::Health::WithRawCallbackMethod_Watch<grpc::health::v1::Health::Service>> {
 public:
  static constexpr int64_t kMaxMessageBytes = 4 << 10;
  static constexpr int kMaxWatches = 1024;

  HealthServiceImpl(const Authenticator* authenticator, TimerQueue* timers, Clock* clock, int max_watches = kMaxWatches)
      : gate_(authenticator, grpc::health::v1::Health::service_full_name()),
        timers_(timers),
        clock_(clock),
        slots_("health_watches", max_watches) {}

  void SetServing(const std::string& service, bool serving) ABSL_LOCKS_EXCLUDED(mu_);
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

  // How many watches are open.
  int watchers() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Watcher;
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  Status StatusNow(const std::string& service) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<grpc::health::v1::HealthCheckResponse> Answer(const std::string& service) const;
  // Whether the watch may begin: not once the service is shut down.
  absl::Status Remember(const std::shared_ptr<Watcher>& watcher) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(Watcher* watcher) ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceGate gate_;
  TimerQueue* const timers_;
  Clock* const clock_;
  StreamSlots slots_;

  mutable absl::Mutex mu_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mu_);
  // A watcher is in it from Watch() until its stream is done.
  std::map<Watcher*, std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
