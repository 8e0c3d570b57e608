#pragma once

// Time, injected: rooms take a Clock, tests give a fake one, only this room reads the machine's.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace penstock {

// Tells the time and waits for it.
//
// Threads:   any method from any thread.
// Units:     nanoseconds of a monotonic clock with an arbitrary zero; absl::Time for wall time.
class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic nanoseconds: for durations, leases and deadlines.
  virtual int64_t NowNanos() = 0;

  // Wall time: for timestamps that people and Prometheus read.
  virtual absl::Time WallNow() = 0;

  // Waits on a mutex held by the caller until the condition holds or the monotonic deadline passes; releases the mutex
  // meanwhile. Returns whether the condition holds. INT64_MAX waits without a deadline.
  virtual bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, int64_t deadline_nanos)
      ABSL_SHARED_LOCKS_REQUIRED(mutex) = 0;
};

// The machine's clock. One instance, never destroyed.
Clock* RealClock();

// Waits on the machine's clock, without using a core, until it shows a deadline; for what stands for hardware that
// works by itself, not for waiting until something happens. Never early. It takes the timer slack of the calling thread
// from 50 us to 1 ns for good, so that it is late only by what the machine needs to wake a thread: on a virtual machine
// with busy cores 40 to 60 us in the median (85 to 100 us with the usual slack), some milliseconds if no core is free.
void SleepUntilNanos(int64_t deadline_nanos);

}  // namespace penstock
