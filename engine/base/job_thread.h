#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

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
  // A job that takes no memory when it is posted.
  using Prepared = std::list<std::function<void()>>;

  explicit JobThread(std::string name);
  ~JobThread() { Close(); }

  static Prepared Prepare(std::function<void()> job);
  void Post(Prepared job) ABSL_LOCKS_EXCLUDED(mu_);
  void Post(std::function<void()> job) { Post(Prepare(std::move(job))); }
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::list<std::function<void()>> jobs_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
