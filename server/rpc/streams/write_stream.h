#pragma once

// One server stream whose messages are made one at a time: the next when the last has left.

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/guard.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/streams/stall_guard.h"

namespace penstock {

// A server stream that sends one message after another and ends exactly once.
//
// Model:     idle, sending, or ended. An end that comes while a message is on its way waits for it.
// Owns:      itself, from Start() until gRPC is done with it; others hold a share. The guard that cancels it where the
//            peer takes too long; the derived class says from when on it watches, and when the peer has nothing to do.
// Threads:   Any method from any thread. The hooks run on gRPC's threads, never under a lock, and
//            must not block; what they throw ends the stream.
// Lifecycle: Start(); Send() when idle; Close(). A cancel by the caller closes the stream.
class WriteStream : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                    public std::enable_shared_from_this<WriteStream> {
 public:
  WriteStream(grpc::CallbackServerContext* context, TimerQueue* timers, Clock* clock,
              absl::Duration patience = StallGuard::kPatience);

  // The stream keeps itself alive from here on.
  void Start() { self_ = shared_from_this(); }

  // Sends a message, or drops it if the stream has ended. Only while idle.
  void Send(grpc::ByteBuffer message) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the stream; the first end counts.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // Does a part of the stream's work, which ends the stream where it fails or throws.
  template <typename Work>
  void Run(Work&& work) {
    if (absl::Status done = Guarded("the stream", std::forward<Work>(work)); !done.ok()) Close(done);
  }
  // Whether the stream has ended for its reader: work that waits for it need not be done.
  bool ended() ABSL_LOCKS_EXCLUDED(mu_);
  // Released just before the client learns of the end, so that its next call finds the place free.
  void Keep(std::shared_ptr<void> place) ABSL_LOCKS_EXCLUDED(mu_);

  // The message has left: time for the next.
  virtual void OnSent() = 0;
  // The caller has gone, or the stream has ended; runs once, before the stream goes away.
  virtual void OnEnded() {}

  grpc::CallbackServerContext* context() { return context_; }
  StallGuard& guard() { return *guard_; }

 private:
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override;
  void OnDone() override;
  void FinishWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<StallGuard> guard_;
  grpc::ByteBuffer message_;  // while sending
  std::shared_ptr<WriteStream> self_;

  absl::Mutex mu_;
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<void> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
