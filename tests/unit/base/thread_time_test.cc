#include "engine/base/thread_time.h"

#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(ThreadTimeTest, GrowsWhileTheThreadRunsAndNotWhileItWaits) {
  constexpr int64_t kMilli = 1'000'000;
  const int64_t begin = ThreadTimeNanos();
  while (ThreadTimeNanos() < begin + 5 * kMilli) continue;
  const int64_t ran = ThreadTimeNanos();
  absl::Mutex mu;
  bool never = false;
  const int64_t waits = RealClock()->NowNanos();
  mu.Lock();
  RealClock()->AwaitUntil(&mu, absl::Condition(&never), waits + 50 * kMilli);
  mu.Unlock();
  EXPECT_GE(RealClock()->NowNanos() - waits, 50 * kMilli);
  EXPECT_LT(ThreadTimeNanos() - ran, 25 * kMilli);
}

}  // namespace
}  // namespace penstock
