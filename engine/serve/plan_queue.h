#pragma once

// Searches for plans that nobody has to be made for: one after the other, and only so many.

#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/cancel_token.h"
#include "engine/base/job_thread.h"
#include "engine/base/queue_bounds.h"

namespace penstock {

// Runs searches on a thread of its own, `ps-plans`.
//
// Model:     One runs, the others wait in the order in which they came, at most kMostWaiting of them and of one caller its
//            share. One that is cancelled while it waits gives its place to the next that comes.
// Threads:   Post() from any thread; Close() from one other thread at a time.
// Lifecycle: Close() runs what waits, then ends the thread; what comes later is dropped.
// Fails:     RESOURCE_EXHAUSTED / QUEUE_FULL or CALLER_QUOTA of the queue "planning", with the time after which to ask again.
class PlanQueue {
 public:
  static constexpr int kMostWaiting = 16;

  // `search` is called once, on the thread, whether it was cancelled or not: it looks at `cancel` by itself.
  absl::Status Post(const std::string& caller, std::shared_ptr<CancelToken> cancel, std::function<void()> search)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Close() { thread_.Close(); }

 private:
  struct Waiting {
    std::string caller;
    std::shared_ptr<CancelToken> cancel;
    std::function<void()> search;
  };

  void RunNext() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  QueueBounds bounds_ ABSL_GUARDED_BY(mu_){
      "planning", {.calls = kMostWaiting, .bytes = std::numeric_limits<int64_t>::max(), .retry_after_ms = 1000}};
  JobThread thread_{"ps-plans"};  // last: it uses all of the above
};

}  // namespace penstock
