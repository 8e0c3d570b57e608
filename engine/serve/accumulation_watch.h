#pragma once

// Accumulations that end by themselves.

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "engine/base/timer_queue.h"
#include "engine/serve/served_calls.h"

namespace penstock {

class Clock;

// Ends an accumulation when its lease is over, in the order of training calls.
//
// Owns:      nothing; its timer is one of ServedCalls. TimerQueue and Clock must outlive it.
// Threads:   those of ServedCalls, whose lock is held around Look(). `expire` runs on the timers' thread, without the
//            lock; it finds out by itself whether the lease is over still.
class AccumulationWatch {
 public:
  AccumulationWatch(TimerQueue* timers, Clock* clock, std::function<void()> expire)
      : timers_(timers), clock_(clock), expire_(std::move(expire)) {}

  // A call has ended, or no longer waits: its lease may be new, or it was all that kept one from its end.
  void Look(ServedCalls& calls, const Call& ended) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls.mu);
  // Whatever the lease is now counts.
  void Watch(ServedCalls& calls) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls.mu);

 private:
  TimerQueue* const timers_;
  Clock* const clock_;
  const std::function<void()> expire_;
};

}  // namespace penstock
