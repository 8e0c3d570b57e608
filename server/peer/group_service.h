#pragma once

// GroupService: where the ranks of a group join their leader.

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/timer_queue.h"
#include "penstock/peer/v1/group_service.grpc.pb.h"
#include "server/peer/membership.h"
#include "server/rpc/method_gate.h"

namespace penstock {

class Authenticator;

// Opens the membership to other processes, and sees to it that it looks at its members in time.
//
// Owns:      nothing but a timer. All that it is given outlives it, and it the server.
// Threads:   gRPC's callback threads and the timers'; no method blocks.
// Lifecycle: Start(); then Membership::Close() ends the streams, the server shuts down, and Close() ends the timer.
class GroupServiceImpl final
    : public peer::v1::GroupService::WithRawCallbackMethod_Join<peer::v1::GroupService::Service> {
 public:
  GroupServiceImpl(const Authenticator* authenticator, Membership* membership, TimerQueue* timers, Clock* clock)
      : gate_(authenticator, peer::v1::GroupService::service_full_name()),
        membership_(membership),
        timers_(timers),
        clock_(clock),
        next_look_(timers, [this] { Look(); }) {}
  ~GroupServiceImpl() override { Close(); }

  void Start() { Look(); }
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Join(grpc::CallbackServerContext* context) override;

 private:
  void Look() ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceGate gate_;
  Membership* const membership_;
  TimerQueue* const timers_;
  Clock* const clock_;

  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  TimerQueue::Alarm next_look_;
};

}  // namespace penstock
