#include "engine/base/timer_queue.h"

#include <gmock/gmock.h>

#include <stdexcept>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "tests/support/failing_new.h"
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

TEST(TimerQueueTest, AnAlarmRunsWhenItWasSetToLast) {
  FakeClock clock(0);
  TimerQueue timers(&clock);
  std::vector<int64_t> ran;
  TimerQueue::Alarm alarm(&timers, [&] { ran.push_back(clock.NowNanos()); });
  EXPECT_EQ(timers.size(), 0);
  alarm.Set(10);
  alarm.Set(30);
  alarm.Set(20);
  EXPECT_EQ(timers.size(), 1);
  for (int i = 0; i < 4; ++i) {
    clock.AdvanceNanos(10);
    timers.SettleForTest();
  }
  EXPECT_THAT(ran, ::testing::ElementsAre(20));
  alarm.Set(50);
  alarm.Clear();
  alarm.Clear();
  clock.AdvanceNanos(10);
  timers.SettleForTest();
  EXPECT_EQ(ran.size(), 1);
}

TEST(TimerQueueTest, AnAlarmIsSetAndClearedWithoutMemory) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  FakeClock clock(0);
  TimerQueue timers(&clock);
  int ran = 0;
  TimerQueue::Alarm* itself = nullptr;
  TimerQueue::Alarm alarm(&timers, [&] {
    FailNew();
    if (++ran < 3) itself->Set(clock.NowNanos());
    EXPECT_FALSE(StopFailingNew());
  });
  itself = &alarm;
  FailNew();
  alarm.Set(20);
  alarm.Clear();
  alarm.Set(10);
  EXPECT_FALSE(StopFailingNew());
  clock.AdvanceNanos(10);
  timers.SettleForTest();
  EXPECT_EQ(ran, 3);
}

TEST(TimerQueueTest, RunsOnTheRealClock) {
  TimerQueue timers(RealClock());
  absl::Notification ran;
  timers.Add(RealClock()->NowNanos() + 1'000'000, [&] { ran.Notify(); });
  ran.WaitForNotification();
}

}  // namespace
}  // namespace penstock::testing
