#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "engine/transport/carrier.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"

namespace penstock {

// The frames of this rank to another one: the sending side of a Transfer stream.
//
// Model:     One message at a time is with gRPC; frames wait here until they have left, and are under way until the
//            receiver says that it has taken them.
// Owns:      the stream and the frames. Timers and clock outlive it.
// Threads:   any method from any thread; none blocks. `on_lost` runs where the loss is found, at once and without a
//            lock. `on_over` runs on gRPC's; the edge must not go before, nor on a thread of gRPC's, which may have to
//            end with the last connection.
// Lifecycle: Start(), Send() at will; then GiveUp(), or Close(), which takes no more frames and ends the stream when
//            the receiver has taken all. The stream is over soon after, but for bytes that are stuck on the way to a
//            frozen peer: then after a keepalive.
class OutgoingEdge final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public std::enable_shared_from_this<OutgoingEdge> {
 public:
  struct Options {
    int64_t send_timeout_nanos = 0;
    TimerQueue* timers = nullptr;
    Clock* clock = nullptr;
    std::function<void(const absl::Status& why)> on_lost;  // at most once, before on_over
    std::function<void()> on_over;                         // the last
  };

  OutgoingEdge(Options options, std::shared_ptr<grpc::Channel> channel);

  void Start(const grpc::ByteBuffer& hello);
  void Send(Frame frame) ABSL_LOCKS_EXCLUDED(mu_);
  void GiveUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Of the first frame: what of it has been given to gRPC.
  struct Position {
    bool header = false;
    size_t piece = 0;
    int64_t offset = 0;  // bytes of the piece
  };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  enum class Step { kNone, kWrite, kEndWrites, kRelease };

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

  template <typename Work>
  void Try(Work&& work) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeAnswer() ABSL_LOCKS_EXCLUDED(mu_);
  void OnTimer() ABSL_LOCKS_EXCLUDED(mu_);
  // Sees to it that OnTimer() runs when the next thing is late.
  void Watch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nothing is sent any more. Returns what has not left, which must go without the lock.
  std::deque<Frame> Stop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is to be done next, which its caller must do without the lock.
  Step Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(Step step) ABSL_LOCKS_EXCLUDED(mu_);
  grpc::ByteBuffer NextMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  grpc::ByteBuffer message_;  // of the one who writes
  grpc::ByteBuffer answer_;   // of the one who reads

  absl::Mutex mu_;
  std::deque<Frame> frames_ ABSL_GUARDED_BY(mu_);  // that have not left
  Position position_ ABSL_GUARDED_BY(mu_);
  std::deque<int64_t> deadlines_ ABSL_GUARDED_BY(mu_);  // of the frames that have not been taken
  int64_t end_deadline_ ABSL_GUARDED_BY(mu_) = kNever;  // of what is left to do when all is taken
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  TimerQueue::TimerId timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;
  bool writing_ ABSL_GUARDED_BY(mu_) = true;    // the hello
  bool closing_ ABSL_GUARDED_BY(mu_) = false;   // no more frames are taken
  bool in_order_ ABSL_GUARDED_BY(mu_) = false;  // all were taken, and the stream ends
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;   // nothing is sent any more
  bool held_ ABSL_GUARDED_BY(mu_) = true;       // the stream may not end: somebody may write
  bool telling_ ABSL_GUARDED_BY(mu_) = false;   // that it is lost, so that the stream may not end yet
  bool told_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
