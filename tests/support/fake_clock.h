#pragma once

// Time that stands still until a test moves it.

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"

namespace penstock::testing {

// A Clock whose time passes by Advance() only; wall time passes with it, from 1970 plus the monotonic time.
//
// Threads:   any method from any thread. Advance() takes the mutexes of all waiters, one after the other: its caller
//            must hold none of them.
// Example:   clock.AwaitWaiters(1);             // the thread under test sleeps
//            clock.Advance(absl::Seconds(5));   // and wakes up
class FakeClock : public Clock {
 public:
  explicit FakeClock(int64_t now_nanos = 1'000'000'000) : now_nanos_(now_nanos) {}

  int64_t NowNanos() override {
    absl::MutexLock lock(&mu_);
    return now_nanos_;
  }

  absl::Time WallNow() override { return absl::FromUnixNanos(NowNanos()); }

  void Advance(absl::Duration time) { AdvanceNanos(absl::ToInt64Nanoseconds(time)); }
  void AdvanceNanos(int64_t nanos) {
    PENSTOCK_CHECK(nanos >= 0);
    std::vector<absl::Mutex*> sleepers;
    {
      absl::MutexLock lock(&mu_);
      now_nanos_ += nanos;
      sleepers = sleepers_;
    }
    // Releasing a mutex makes its waiters look at their conditions again.
    for (absl::Mutex* mutex : sleepers) absl::MutexLock wake(mutex);
  }

  // Waits until at least `count` threads are inside AwaitUntil().
  void AwaitWaiters(size_t count) {
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return sleepers_.size() >= count; };
    absl::MutexLock lock(&mu_, absl::Condition(&enough));
  }

  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition,
                  int64_t deadline_nanos) override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    {
      absl::MutexLock lock(&mu_);
      sleepers_.push_back(mutex);
    }
    const auto done = [&] { return condition.Eval() || NowNanos() >= deadline_nanos; };
    mutex->Await(absl::Condition(&done));
    {
      absl::MutexLock lock(&mu_);
      for (size_t i = 0; i < sleepers_.size(); ++i) {
        if (sleepers_[i] != mutex) continue;
        sleepers_.erase(sleepers_.begin() + static_cast<ptrdiff_t>(i));
        break;
      }
    }
    return condition.Eval();
  }

 private:
  absl::Mutex mu_;
  int64_t now_nanos_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Mutex*> sleepers_ ABSL_GUARDED_BY(mu_);  // once per waiting thread
};

}  // namespace penstock::testing
