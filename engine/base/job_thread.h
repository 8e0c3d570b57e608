#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"

namespace penstock {

// Runs jobs one after the other on a thread of its own: what touches a disk must not run where calls are answered.
//
// Threads:   Post() from any thread, also its own; Close() from one other thread at a time.
// Lifecycle: Close() runs what was posted before, then ends the thread; what comes later is dropped.
// Fails:     a job that throws is logged (guard.h), and the next one runs.
class JobThread {
 public:
  explicit JobThread(std::string name);
  ~JobThread() { Close(); }

  void Post(std::function<void()> job) ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
