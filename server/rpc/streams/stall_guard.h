#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "grpcpp/server_context.h"

namespace penstock {

// Cancels a stream whose peer is too slow, so that it can't hold memory for ever.
//
// Model:     The peer has some time left, at most `patience`. It runs out while the peer is to act; each byte that
//            moves buys 1 / min_rate seconds, and a message that has no data buys all of it again. So a peer that moves
//            data at the least rate goes on, and one that sends a little now and then does not. EndAt() bounds the
//            whole stream.
// Threads:   any method from any thread.
// Lifecycle: Watch(); Progress(), Moved() at each message; Stop() when the call is done, before its context goes.
// Units:     bytes, bytes per second, monotonic nanoseconds of the Clock.
class StallGuard : public std::enable_shared_from_this<StallGuard> {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(30);
  static constexpr int64_t kMinRate = int64_t{16} << 10;

  StallGuard(TimerQueue* timers, Clock* clock, absl::Duration patience = kPatience)
      : timers_(timers), clock_(clock), patience_nanos_(absl::ToInt64Nanoseconds(patience)) {}

  void Watch(grpc::CallbackServerContext* context) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    context_ = context;
    end_nanos_ = Latest();
    Schedule(end_nanos_);
  }
  // The peer has done what it had to do.
  void Progress() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    end_nanos_ = Latest();
  }
  // The peer has sent or taken so many bytes.
  void Moved(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    end_nanos_ = std::min(Latest(), end_nanos_ + bytes * kNanosPerSecond / kMinRate);
  }
  // While the server is at work on what the peer has sent, the peer has nothing to do and its time stands still.
  void SetBusy(bool busy) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const int64_t now = clock_->NowNanos();
    if (busy_ && !busy) end_nanos_ += now - busy_since_nanos_;
    busy_ = busy;
    busy_since_nanos_ = now;
  }
  // Whatever the peer does, the stream ends then.
  void EndAt(int64_t nanos) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    last_nanos_ = nanos;
  }
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    context_ = nullptr;
    timers_->Remove(timer_);
  }

 private:
  static constexpr int64_t kNanosPerSecond = 1'000'000'000;

  int64_t Latest() const { return clock_->NowNanos() + patience_nanos_; }
  void Schedule(int64_t at_nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    timer_ = timers_->Add(at_nanos, [guard = shared_from_this()] { guard->Look(); });
  }
  void Look() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (context_ == nullptr) return;
    if (busy_) return Schedule(Latest());
    const int64_t end_nanos = std::min(end_nanos_, last_nanos_);
    if (end_nanos > clock_->NowNanos()) return Schedule(end_nanos);
    context_->TryCancel();
  }

  TimerQueue* const timers_;
  Clock* const clock_;
  const int64_t patience_nanos_;

  absl::Mutex mu_;
  int64_t end_nanos_ ABSL_GUARDED_BY(mu_) = 0;  // when the peer's time is over
  int64_t last_nanos_ ABSL_GUARDED_BY(mu_) = std::numeric_limits<int64_t>::max();
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  int64_t busy_since_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  TimerQueue::TimerId timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;
};

}  // namespace penstock
