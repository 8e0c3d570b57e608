#pragma once

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/store/timer_queue.h"
#include "grpcpp/server_context.h"

namespace penstock {

// Cancels a stream whose peer neither reads nor writes, so that it can't hold memory for ever.
//
// Model:     a count of progress; twice the same count at the timer's looks ends the call.
// Threads:   any method from any thread.
// Lifecycle: Watch(); Progress() at each message; Stop() when the call is done, before its context
//            goes.
class StallGuard : public std::enable_shared_from_this<StallGuard> {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(30);

  StallGuard(TimerQueue* timers, Clock* clock) : timers_(timers), clock_(clock) {}

  void Watch(grpc::CallbackServerContext* context) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    context_ = context;
    Schedule(progress_);
  }
  void Progress() { ++progress_; }
  // While the server is at work on what the peer has sent, the peer has nothing to do.
  void SetBusy(bool busy) {
    ++progress_;
    busy_ = busy;
  }
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    context_ = nullptr;
    timers_->Remove(timer_);
  }

 private:
  void Schedule(int64_t seen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    timer_ = timers_->Add(clock_->NowNanos() + absl::ToInt64Nanoseconds(kPatience),
                          [guard = shared_from_this(), seen] { guard->Look(seen); });
  }
  void Look(int64_t seen) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (context_ == nullptr) return;
    if (progress_ == seen && !busy_) {
      context_->TryCancel();
      return;
    }
    Schedule(progress_);
  }

  TimerQueue* const timers_;
  Clock* const clock_;
  std::atomic<int64_t> progress_ = 0;
  std::atomic<bool> busy_ = false;

  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  TimerQueue::TimerId timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;
};

}  // namespace penstock
