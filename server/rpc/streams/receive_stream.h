#pragma once

// What streams have in common that take bytes from a client within credit.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/services/service_environment.h"
#include "server/rpc/streams/stall_guard.h"

namespace penstock {

// The sending half, the credit and the end of such a stream; what is read, and what it means, is the derived class's.
//
// Model:     writes are queued, and the status waits for them; a sender may send as many bytes as it has credit, which comes
//            back in portions as the bytes are taken in. Nothing here holds it to that: messages are read one after the other,
//            and what a hasty sender is ahead waits in its own flow window.
// Owns:      itself, until gRPC is done with it.
// Threads:   Write and End from any thread. The credit belongs to whoever takes in what was read.
class ReceiveStream : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static constexpr int64_t kMaxMessageBytes = (int64_t{1} << 20) + (int64_t{64} << 10);

 protected:
  ReceiveStream(const ServiceEnvironment& environment, grpc::CallbackServerContext* context, int64_t credit);

  void Write(const google::protobuf::Message& response) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream when all that was written has left. The first status counts.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // The same where the client has closed its side, or is gone, before it sent its last chunk.
  void EndEarly(bool started);

  // Released just before the end is told, so that the caller's next call finds it so.
  void Keep(std::shared_ptr<void> place) ABSL_LOCKS_EXCLUDED(mu_);

  // So many bytes were taken in: their credit goes back to the sender.
  void Took(int64_t bytes) { taken_ += bytes; }
  // What to give the sender now: all of it for the first time, later what was taken in, if that is worth a message.
  std::optional<int64_t> Credit(bool first);

  StallGuard& guard() { return *guard_; }

  // What the derived class holds may go: gRPC is done.
  virtual void Release() = 0;

 private:
  void OnWriteDone(bool ok) final;
  void OnDone() final;
  // The status to finish with, once, when all that was written has left: who gets it finishes, and nobody else may touch
  // this afterwards.
  std::optional<absl::Status> TakeEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWith(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<StallGuard> guard_;
  const int64_t full_credit_;
  int64_t taken_ = 0;  // bytes taken in whose credit has not been given back

  absl::Mutex mu_;
  std::deque<grpc::ByteBuffer> writes_ ABSL_GUARDED_BY(mu_);  // the first one is on its way
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<void> kept_ ABSL_GUARDED_BY(mu_);
};

// STREAM_PROTOCOL: a message out of place.
absl::Status OutOfPlace(std::string_view problem, std::string_view value);

}  // namespace penstock
