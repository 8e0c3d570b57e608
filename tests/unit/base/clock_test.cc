#include "engine/base/clock.h"

#include <limits>

#include "absl/time/clock.h"
#include "engine/base/thread.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

TEST(RealClockTest, IsOneInstance) { EXPECT_EQ(RealClock(), RealClock()); }

TEST(RealClockTest, MonotonicTimeNeverGoesBack) {
  int64_t last = RealClock()->NowNanos();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = RealClock()->NowNanos();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(RealClockTest, WallTimeIsTheMachinesTime) {
  const absl::Time before = absl::Now();
  const absl::Time now = RealClock()->WallNow();
  EXPECT_LE(before, now);
  EXPECT_LE(now, absl::Now());
}

TEST(RealClockTest, AConditionThatHoldsNeedsNoWait) {
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  bool ready = true;
  EXPECT_TRUE(RealClock()->AwaitUntil(&mutex, absl::Condition(&ready), RealClock()->NowNanos() - 1));
  EXPECT_TRUE(RealClock()->AwaitUntil(&mutex, absl::Condition(&ready), kForever));
}

TEST(RealClockTest, APassedDeadlineAnswersThatTheConditionDoesNotHold) {
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  bool ready = false;
  const int64_t deadline = RealClock()->NowNanos() + 1'000'000;
  EXPECT_FALSE(RealClock()->AwaitUntil(&mutex, absl::Condition(&ready), deadline));
  EXPECT_GE(RealClock()->NowNanos(), deadline);
}

TEST(RealClockTest, AWaitEndsWhenAnotherThreadMakesTheConditionTrue) {
  absl::Mutex mutex;
  bool ready = false;
  absl::MutexLock lock(&mutex);
  // The thread can take the mutex only while AwaitUntil has released it.
  Thread thread("ps-test", [&] {
    absl::MutexLock other(&mutex);
    ready = true;
  });
  EXPECT_TRUE(RealClock()->AwaitUntil(&mutex, absl::Condition(&ready), kForever));
}

TEST(SleepUntilNanosTest, IsNeverEarlyAndPassesWhatIsPast) {
  const int64_t start = RealClock()->NowNanos();
  SleepUntilNanos(start + 2'000'000);
  EXPECT_GE(RealClock()->NowNanos(), start + 2'000'000);
  SleepUntilNanos(start);
  SleepUntilNanos(0);
}

}  // namespace
}  // namespace penstock
