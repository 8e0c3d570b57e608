#pragma once

// Searches for plans from which no pipeline is created (PlanPipeline, validate_only): one after the other, with a
// bounded queue.

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/cancel_token.h"
#include "engine/base/queue_bounds.h"
#include "engine/base/turn_thread.h"

namespace penstock {

// Runs searches on a thread of its own, `ps-plans` (turn_thread.h).
//
// Model:     One runs, or more where some are late, the others wait in the order in which they came, at most kMaxWaiting of them and of one caller
//            its share. One that is cancelled while it waits gives its place to the next that comes.
// Threads:   Post() from any thread; Close() from one other thread at a time.
// Lifecycle: Close() runs what waits, then ends the thread.
// Fails:     UNAVAILABLE / DRAINING after Close(). RESOURCE_EXHAUSTED / QUEUE_FULL or CALLER_QUOTA of the queue
//            "planning", with the time after which to ask again.
class PlanQueue {
 public:
  static constexpr int kMaxWaiting = 16;

  PlanQueue(TimerQueue* timers, Clock* clock) : thread_("ps-plans", timers, clock) {}

  // `search` is called once, on the queue's thread, or, if it was cancelled while it waited, by a later Post(): it must
  // check `cancel` itself and return at once if it is set.
  absl::Status Post(const std::string& caller, std::shared_ptr<CancelToken> cancel, std::function<void()> search)
      ABSL_LOCKS_EXCLUDED(mu_);
  // From a search on the queue's thread: after so long, the next begins beside it.
  void HoldTurn(absl::Duration time) { thread_.HoldTurn(time); }
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    std::string caller;
    std::shared_ptr<CancelToken> cancel;
    std::function<void()> search;
  };

  void RunNext() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  size_t turns_ ABSL_GUARDED_BY(mu_) = 0;  // of RunNext() that the thread still has to take: as many as wait, or more
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  QueueBounds bounds_ ABSL_GUARDED_BY(mu_){
      "planning", {.calls = kMaxWaiting, .bytes = std::numeric_limits<int64_t>::max(), .retry_after_ms = 1000}};
  TurnThread thread_;  // last: it uses all of the above
};

}  // namespace penstock
