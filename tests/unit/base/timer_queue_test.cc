#include "engine/base/timer_queue.h"

#include <gmock/gmock.h>

#include <stdexcept>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {
namespace {

TEST(TimerQueueTest, RunsInOrderOfTimeAndNotBefore) {
  FakeClock clock(0);
  TimerQueue timers(&clock);
  std::vector<int> ran;
  timers.Add(20, [&] { ran.push_back(2); });
  timers.Add(10, [&] { ran.push_back(1); });
  timers.Add(20, [&] { ran.push_back(3); });
  clock.AdvanceNanos(9);
  timers.SettleForTest();
  EXPECT_TRUE(ran.empty());
  clock.AdvanceNanos(1);
  timers.SettleForTest();
  EXPECT_THAT(ran, ::testing::ElementsAre(1));
  clock.AdvanceNanos(100);
  timers.SettleForTest();
  EXPECT_THAT(ran, ::testing::ElementsAre(1, 2, 3));
}

TEST(TimerQueueTest, AnEarlierTimerWakesASleepingQueue) {
  FakeClock clock(0);
  TimerQueue timers(&clock);
  timers.Add(1'000'000, [] { FAIL(); });
  clock.AwaitWaiters(1);
  absl::Notification ran;
  timers.Add(0, [&] { ran.Notify(); });
  ran.WaitForNotification();
}

TEST(TimerQueueTest, ATimerThatThrowsDoesNotKeepTheNextOneFromRunning) {
  FakeClock clock;
  TimerQueue timers(&clock);
  bool ran = false;
  timers.Add(clock.NowNanos(), [] { throw std::runtime_error("broken"); });
  timers.Add(clock.NowNanos(), [&ran] { ran = true; });
  timers.SettleForTest();
  EXPECT_TRUE(ran);
}

TEST(TimerQueueTest, ARemovedTimerDoesNotRun) {
  FakeClock clock(0);
  TimerQueue timers(&clock);
  const auto id = timers.Add(10, [] { FAIL(); });
  EXPECT_TRUE(timers.Remove(id));
  EXPECT_FALSE(timers.Remove(id));
  EXPECT_FALSE(timers.Remove(TimerQueue::kNoTimer));
  clock.AdvanceNanos(10);
  timers.SettleForTest();
  EXPECT_EQ(timers.size(), 0);
}

TEST(TimerQueueTest, ATimerMayAddAndRemoveTimers) {
  FakeClock clock(0);
  TimerQueue timers(&clock);
  bool ran = false;
  const auto later = timers.Add(20, [] { FAIL(); });
  timers.Add(10, [&] {
    timers.Remove(later);
    timers.Add(0, [&] { ran = true; });
  });
  clock.AdvanceNanos(30);
  timers.SettleForTest();
  EXPECT_TRUE(ran);
}

TEST(TimerQueueTest, QuiesceWaitsForWhatRuns) {
  FakeClock clock(0);
  TimerQueue timers(&clock);
  absl::Notification started;
  absl::Notification finish;
  std::atomic<bool> finished = false;
  timers.Add(0, [&] {
    started.Notify();
    finish.WaitForNotification();
    finished = true;
  });
  started.WaitForNotification();
  finish.Notify();
  timers.Quiesce();
  EXPECT_TRUE(finished);
}

TEST(TimerQueueTest, RunsOnTheRealClock) {
  TimerQueue timers(RealClock());
  absl::Notification ran;
  timers.Add(RealClock()->NowNanos() + 1'000'000, [&] { ran.Notify(); });
  ran.WaitForNotification();
}

}  // namespace
}  // namespace penstock::testing
