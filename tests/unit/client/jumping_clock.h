#pragma once

// Time that jumps to the end of every wait, so that retries cost nothing in tests.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/base/clock.h"

namespace penstock::testing {

// A Clock on which nobody waits.
//
// Threads:   any; waits() when nobody waits.
class JumpingClock : public Clock {
 public:
  int64_t NowNanos() override { return now_nanos_; }
  absl::Time WallNow() override { return absl::FromUnixNanos(now_nanos_); }

  bool AwaitUntil(absl::Mutex*, const absl::Condition& condition,
                  int64_t deadline_nanos) override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (condition.Eval()) return true;
    absl::MutexLock lock(&mu_);
    waits_.push_back(absl::Nanoseconds(deadline_nanos - now_nanos_));
    now_nanos_ = std::max<int64_t>(now_nanos_, deadline_nanos);
    return condition.Eval();
  }

  const std::vector<absl::Duration>& waits() const { return waits_; }

 private:
  std::atomic<int64_t> now_nanos_ = 1'000'000'000;
  absl::Mutex mu_;
  std::vector<absl::Duration> waits_;
};

}  // namespace penstock::testing
