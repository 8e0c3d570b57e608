#pragma once

// One server stream whose messages are made one at a time: the next when the last has left.

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {

// A server stream that sends one message after another and ends exactly once.
//
// Model:     idle, sending, or ended. An end that comes while a message is on its way waits for it.
// Owns:      itself, from Start() until gRPC is done with it; others hold a share.
// Threads:   Any method from any thread. The hooks run on gRPC's threads, never under a lock, and
//            must not block.
// Lifecycle: Start(); Send() when idle; Close(). A cancel by the caller closes the stream.
template <typename Message>
class WriteStream : public grpc::ServerWriteReactor<Message>,
                    public std::enable_shared_from_this<WriteStream<Message>> {
 public:
  // The stream keeps itself alive from here on.
  void Start() { self_ = this->shared_from_this(); }

  // Sends a message, or drops it if the stream has ended. Only while idle.
  void Send(Message message) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (ending_) return;
      PENSTOCK_CHECK(!sending_);
      sending_ = true;
    }
    message_ = std::move(message);
    this->StartWrite(&message_);
  }

  // Ends the stream; the first end counts.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (ending_) return;
      ending_ = true;
      end_ = status;
      if (sending_) return;
    }
    this->Finish(ToGrpcStatus(status));
  }

  bool ended() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return ending_;
  }

 protected:
  // Does a part of the stream's work, which ends the stream where it fails or throws.
  template <typename Work>
  void Run(Work&& work) {
    if (absl::Status done = Guarded("the stream", std::forward<Work>(work)); !done.ok()) Close(done);
  }
  // The message has left: time for the next.
  virtual void OnSent() = 0;
  // The caller has gone, or nobody will hear more; runs once, before the stream goes away.
  virtual void OnEnded() {}

 private:
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::Status end;
    bool ending;
    {
      absl::MutexLock lock(&mu_);
      sending_ = false;
      if (!ok && !ending_) {
        ending_ = true;
        end_ = Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the stream broke off");
      }
      ending = ending_;
      end = end_;
    }
    if (ending) {
      this->Finish(ToGrpcStatus(end));
    } else {
      Run([this] {
        OnSent();
        return absl::OkStatus();
      });
    }
  }

  void OnCancel() override {
    Close(Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the caller has left the stream"));
  }

  void OnDone() override {
    OnEnded();
    self_.reset();
  }

  Message message_;  // while sending
  std::shared_ptr<WriteStream> self_;

  mutable absl::Mutex mu_;
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
