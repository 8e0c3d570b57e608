#pragma once

// What streams have in common that take bytes from a client within credit.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/stall_guard.h"

namespace penstock {

// The sending half, the credit and the end of such a stream; what is read, and what it means, is the derived class's.
//
// Model:     writes are queued, and the status waits for them; a sender may send as many bytes as it has credit, which
//            comes back in portions as the bytes are taken in. Credit is not enforced here: messages are read one after
//            the other, so what a sender sends beyond it waits in gRPC's flow window.
// Owns:      itself, until gRPC is done with it.
// Threads:   Write and End from any thread. The credit belongs to the code that consumes what was read.
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

  // Released just before the client learns of the end, so that its next call finds the place free.
  void Keep(std::shared_ptr<void> place) ABSL_LOCKS_EXCLUDED(mu_);

  // So many bytes were taken in: their credit goes back to the sender.
  void Took(int64_t bytes) { taken_ += bytes; }
  // Writes an answer that says where to go on, with the credit that the sender gets now: all of it for the first time,
  // later what was taken in, if that is worth a message.
  template <typename Response>
  void WriteCredit(Response& response, bool first) {
    const std::optional<int64_t> credit = Credit(first);
    if (!credit.has_value()) return;
    response.mutable_credit()->set_bytes(*credit);
    Write(response);
  }
  // After a message was taken: reads another one into `read` if there is more to come, else ends.
  void GoOn(const absl::StatusOr<bool>& more, grpc::ByteBuffer* read);

  StallGuard& guard() { return *guard_; }
  grpc::CallbackServerContext* context() { return context_; }

  // What the derived class holds may go: gRPC is done.
  virtual void Release() = 0;

 private:
  std::optional<int64_t> Credit(bool first);
  void OnWriteDone(bool ok) final;
  void OnDone() final;
  // The status to finish with, once, when all that was written has left. The caller that gets it must finish the
  // stream, and no other may touch this afterwards.
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
