#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/job_thread.h"
#include "engine/base/timer_queue.h"

namespace penstock {

class Clock;

// Runs jobs one after the other, as a JobThread does; but one that takes longer than it said keeps only its thread, not
// its turn: those behind it go on beside it.
//
// Owns:      a thread, and one more for each job that is late, until it ends. TimerQueue and Clock outlive it.
// Threads:   Post() from any thread; HoldTurn() from a job; Close() from one other thread at a time.
// Lifecycle: Close() runs what was posted before, then ends the threads; what comes later is dropped.
// Fails:     as JobThread.
class TurnThread {
 public:
  TurnThread(std::string name, TimerQueue* timers, Clock* clock);
  ~TurnThread() { Close(); }

  void Post(std::function<void()> job) ABSL_LOCKS_EXCLUDED(mu_);
  // From a job: it has its turn for so long from now; without this, or if it is infinite, to its end.
  void HoldTurn(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // One thread. The last has the turn.
  struct Worker {
    std::unique_ptr<JobThread> thread;
    bool busy = false;
    TimerQueue::TimerId late = TimerQueue::kNoTimer;
  };

  std::shared_ptr<Worker> MakeWorker() const;
  // Runs the first job, if the worker has the turn.
  void RunNext(Worker* worker) ABSL_LOCKS_EXCLUDED(mu_);
  void PassTurn(const Worker* late) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string name_;
  TimerQueue* const timers_;
  Clock* const clock_;

  absl::Mutex mu_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Worker>> workers_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
