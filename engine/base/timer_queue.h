#pragma once

// Functions that run at an instant of an injected clock: leases, deadlines of waits and of work.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

class Clock;
class Thread;

// Runs each function when its time has come, not when somebody next looks.
//
// Model:     Functions in order of time; those of one instant in the order in which they were added.
// Owns:      One thread, `ps-timer`. The Clock must outlive it.
// Threads:   Any method from any thread, from inside a timer too. Functions run one after another on
//            the queue's thread, never under mu_; they must not block.
// Lifecycle: The destructor drops what has not run and waits for what runs.
// Units:     Monotonic nanoseconds of the Clock; a time that has passed means at once.
// Fails:     A function that throws is logged (guard.h), and the next one runs.
class TimerQueue {
 public:
  using TimerId = std::pair<int64_t, uint64_t>;  // when, and the order of adding
  static constexpr TimerId kNoTimer = {0, 0};
  class Alarm;

  explicit TimerQueue(Clock* clock);
  ~TimerQueue();

  TimerId Add(int64_t at_nanos, std::function<void()> run) ABSL_LOCKS_EXCLUDED(mu_);

  // Removes a timer that has not begun to run; returns whether there was one. kNoTimer is fine.
  bool Remove(TimerId id) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns when the function that runs now, if any, has returned. From no timer.
  void Quiesce() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns when everything that is due at the clock's present time has run.
  void SettleForTest() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::function<void()> run;
    Alarm* alarm = nullptr;  // whose it is
  };
  using Entries = std::map<TimerId, Entry>;

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HeadChanged() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  Clock* const clock_;

  mutable absl::Mutex mu_;
  Entries timers_ ABSL_GUARDED_BY(mu_);
  uint64_t added_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t turns_ ABSL_GUARDED_BY(mu_) = 0;          // functions that have run
  TimerId awaited_ ABSL_GUARDED_BY(mu_) = kNoTimer;  // what the thread sleeps for
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

// One function that runs again and again, each time when it was set to: only making it takes memory, so that what must go
// on can be set where there is none.
//
// Owns:      its place in the queue, which outlives it.
// Threads:   any method from any thread, from inside its function too.
// Lifecycle: Clear() and the queue's Quiesce(), before it goes or what its function uses.
class TimerQueue::Alarm {
 public:
  Alarm(TimerQueue* queue, std::function<void()> run);
  ~Alarm() { Clear(); }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // In the place of what it was set to before. Takes no memory.
  void Set(int64_t at_nanos);
  void Clear();

 private:
  friend class TimerQueue;
  // Takes it out of the queue.
  void TakePlace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue_->mu_);

  TimerQueue* const queue_;
  const std::function<void()> run_;
  Entries::node_type place_ ABSL_GUARDED_BY(queue_->mu_);  // empty while it is in the queue
  TimerId id_ ABSL_GUARDED_BY(queue_->mu_) = kNoTimer;
};

}  // namespace penstock
