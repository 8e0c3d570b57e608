#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/timer_queue.h"
#include "engine/transport/carrier.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "penstock/peer/v1/transfer.pb.h"

namespace penstock {

class TransferReader;

// The frames of another rank to this one: the receiving side of a Transfer stream, from anybody who opens one.
//
// Model:     A hello first. Once it is accepted the stream waits for Begin(). Then a frame at a time: its header is
//            judged, its chunks go to their places or are dropped, and the sender is told that it was taken.
// Owns:      itself, until gRPC is done with it; others hold a share.
// Threads:   any method from any thread. The handlers, and what landings call, run on gRPC's, one after the other.
// Lifecycle: Start(); Begin() once `on_hello` has accepted it; End(). A payload that is not whole then has ended before
//            `on_over` is called, which is the last.
class IncomingEdge final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public std::enable_shared_from_this<IncomingEdge> {
 public:
  struct Options {
    // An error ends the stream with it. Begin() may be called before this returns.
    std::function<absl::Status(const peer::v1::TransferHello& hello, const std::shared_ptr<IncomingEdge>& edge)>
        on_hello;
    std::function<absl::StatusOr<Landing>(std::string_view header, int64_t payload_bytes)> on_header;
    // Whether the sender has closed its side, rather than broken off.
    std::function<void(const IncomingEdge* edge, bool in_order)> on_over;
    TimerQueue* timers = nullptr;
    int64_t hello_deadline_nanos = 0;
  };

  IncomingEdge(Options options, grpc::CallbackServerContext* context);

  void Start();
  void Begin() ABSL_LOCKS_EXCLUDED(mu_);
  // The first end counts.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override;
  void OnDone() override ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status Take() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeHello(const peer::v1::TransferHello& hello) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeFrame(const peer::v1::TransferFrame& frame) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeChunk(TransferReader* chunk) ABSL_LOCKS_EXCLUDED(mu_);
  void EndFrame(const absl::Status& how) ABSL_LOCKS_EXCLUDED(mu_);
  void TellTaken() ABSL_LOCKS_EXCLUDED(mu_);
  void OnLate() ABSL_LOCKS_EXCLUDED(mu_);
  bool greeted() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return greeted_;
  }

  // What to finish with, once, when nothing is under way any more.
  std::optional<absl::Status> TakeEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWith(const std::optional<absl::Status>& end);

  const Options options_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<IncomingEdge> self_;
  grpc::ByteBuffer read_;     // of the one who reads
  grpc::ByteBuffer written_;  // of the one who writes

  // Of the one who reads.
  bool in_frame_ = false;
  std::optional<Landing> landing_;  // none: the payload is dropped
  int64_t payload_left_ = 0;        // bytes of the frame that are still to come
  size_t place_ = 0;                // where the next one goes
  int64_t place_offset_ = 0;

  absl::Mutex mu_;
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  bool greeted_ ABSL_GUARDED_BY(mu_) = false;  // its hello was accepted
  bool reading_ ABSL_GUARDED_BY(mu_) = true;   // a read is under way, or what it has read is being taken
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;  // frames
  int64_t told_ ABSL_GUARDED_BY(mu_) = 0;   // of them, those that the sender knows of
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  TimerQueue::TimerId timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;
};

}  // namespace penstock
