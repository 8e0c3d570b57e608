#include "engine/base/turn_thread.h"

#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

class TurnThreadTest : public ::testing::Test {
 protected:
  ~TurnThreadTest() override { thread_.Close(); }

  // A job that holds its turn for a minute and lasts until `go`.
  void PostHeld(absl::Notification* started, absl::Notification* go) {
    thread_.Post([this, started, go] {
      thread_.HoldTurn(absl::Minutes(1));
      started->Notify();
      go->WaitForNotification();
    });
  }

  testing::FakeClock clock_;
  TimerQueue timers_{&clock_};
  TurnThread thread_{"ps-turns", &timers_, &clock_};
};

TEST_F(TurnThreadTest, JobsRunOneAfterTheOther) {
  std::vector<int> ran;
  for (int i = 0; i < 3; ++i) thread_.Post([&ran, i] { ran.push_back(i); });
  thread_.Close();
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
  thread_.Post([&ran] { ran.push_back(3); });
  EXPECT_THAT(ran, ElementsAre(0, 1, 2)) << "what comes after Close() is dropped";
}

TEST_F(TurnThreadTest, ThoseBehindALateJobGoOnBesideIt) {
  absl::Notification started, go, second, third;
  PostHeld(&started, &go);
  started.WaitForNotification();
  thread_.Post([&] { second.Notify(); });
  clock_.Advance(absl::Seconds(59));
  timers_.SettleForTest();
  EXPECT_FALSE(second.HasBeenNotified());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(absl::Seconds(30)));
  thread_.Post([&] { third.Notify(); });
  EXPECT_TRUE(third.WaitForNotificationWithTimeout(absl::Seconds(30))) << "and those that come later";
  go.Notify();
  thread_.Close();  // nobody waits for `go` any more
}

TEST_F(TurnThreadTest, AJobThatEndsInTimePassesNothingOn) {
  absl::Notification started, go, started_too, go_too, behind;
  PostHeld(&started, &go);
  started.WaitForNotification();
  go.Notify();
  thread_.Post([&] {  // holds its turn to its end
    started_too.Notify();
    go_too.WaitForNotification();
  });
  started_too.WaitForNotification();
  thread_.Post([&] { behind.Notify(); });
  clock_.Advance(absl::Minutes(2));
  timers_.SettleForTest();
  EXPECT_FALSE(behind.HasBeenNotified());
  EXPECT_EQ(timers_.size(), 0);
  go_too.Notify();
  behind.WaitForNotification();
}

}  // namespace
}  // namespace penstock
