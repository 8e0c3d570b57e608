#include "engine/observe/state_clock.h"

#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "engine/base/thread.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using testing::FakeClock;

int64_t Sum(const StateTimes& times) { return std::accumulate(times.nanos.begin(), times.nanos.end(), int64_t{0}); }

TEST(StateClockTest, StartsInSetup) {
  FakeClock clock(500);
  StateClock lane(&clock);
  clock.AdvanceNanos(7);
  const StateTimes times = lane.Snapshot();
  EXPECT_EQ(times.state, StageState::kSetup);
  EXPECT_EQ(times[StageState::kSetup], 7);
  EXPECT_EQ(times.start_nanos, 500);
  EXPECT_EQ(times.Total(), 7);
}

TEST(StateClockTest, ChargesEachStateFromItsBeginToTheNext) {
  FakeClock clock(0);
  StateClock lane(&clock);
  lane.Enter(StageState::kForward, 10);
  lane.Enter(StageState::kWaitGradient, 30);
  lane.Enter(StageState::kForward, 35);
  const StateTimes times = lane.Snapshot(100);
  EXPECT_EQ(times[StageState::kSetup], 10);
  EXPECT_EQ(times[StageState::kForward], 20 + 65);
  EXPECT_EQ(times[StageState::kWaitGradient], 5);
  EXPECT_EQ(times.at_nanos, 100);
  EXPECT_EQ(lane.state(), StageState::kForward);
}

TEST(StateClockTest, EnteringTheRunningStateChangesNothing) {
  FakeClock clock(0);
  StateClock lane(&clock);
  lane.Enter(StageState::kForward, 10);
  lane.Enter(StageState::kForward, 20);
  EXPECT_EQ(lane.Snapshot(30)[StageState::kForward], 20);
}

// A clock that stands: what it shows ends there, until what was done is told.
TEST(StateClockTest, WhatIsToldOfAClockThatStandsFillsItsTime) {
  FakeClock clock(0);
  StateClock lane(&clock);
  lane.Enter(StageState::kNoWork, 10);
  lane.Stand(StageState::kFill, 20);
  EXPECT_EQ(lane.Snapshot(50).at_nanos, 20);
  EXPECT_EQ(Sum(lane.Snapshot(50)), 20);
  TimesByState told{};
  told[static_cast<size_t>(StageState::kForward)] = 30;
  told[static_cast<size_t>(StageState::kDrain)] = 5;
  lane.Tell(told, 60);
  const StateTimes times = lane.Snapshot(70);
  EXPECT_EQ(times.at_nanos, 60) << "it stands on";
  EXPECT_EQ(times[StageState::kNoWork], 10);
  EXPECT_EQ(times[StageState::kForward], 30);
  EXPECT_EQ(times[StageState::kDrain], 5);
  EXPECT_EQ(times[StageState::kFill], 5) << "that nobody told of";
  EXPECT_EQ(Sum(times), times.Total());
  lane.Enter(StageState::kFill, 80);
  EXPECT_EQ(lane.Snapshot(90).at_nanos, 90) << "it goes on, in the same state too";
  EXPECT_EQ(lane.Snapshot(90)[StageState::kFill], 5 + 30);
}

TEST(StateClockTest, NoMoreThanItsTimeCanBeToldOfAClock) {
  FakeClock clock(0);
  StateClock lane(&clock);
  TimesByState told{};
  told[static_cast<size_t>(StageState::kForward)] = 30;
  told[static_cast<size_t>(StageState::kDrain)] = 30;
  lane.Tell(told, 40);
  EXPECT_EQ(lane.Snapshot(40)[StageState::kSetup], 40) << "one that runs knows by itself";
  lane.Stand(StageState::kFill, 40);
  lane.Tell(told, 80);
  const StateTimes times = lane.Snapshot(100);
  EXPECT_EQ(times[StageState::kForward], 30);
  EXPECT_EQ(times[StageState::kDrain], 10);
  EXPECT_EQ(Sum(times), 80);
}

TEST(StateClockTest, TimesThatGoBackCountAsTheLastTransition) {
  FakeClock clock(0);
  StateClock lane(&clock);
  lane.Enter(StageState::kForward, 50);
  lane.Enter(StageState::kBackward, 40);
  const StateTimes times = lane.Snapshot(45);
  EXPECT_EQ(times.at_nanos, 50);
  EXPECT_EQ(times[StageState::kForward], 0);
  EXPECT_EQ(times[StageState::kBackward], 0);
  EXPECT_EQ(lane.Snapshot(60)[StageState::kBackward], 10);
}

// A scrape between the moment at which a lane read its clock and the moment at which it took the lock has already shown
// time of the old state; taking it back would look like a restart to Prometheus.
TEST(StateClockTest, ATransitionThatIsPutOffIsCounted) {
  testing::FakeClock clock;
  StateClock lane(&clock);
  const int64_t start = clock.NowNanos();
  (void)lane.Snapshot(start + 50);
  lane.Enter(StageState::kForward, start + 20);
  EXPECT_EQ(lane.clamped_nanos(), 30);
  lane.Enter(StageState::kHost, start + 60);
  EXPECT_EQ(lane.clamped_nanos(), 30);
}

TEST(StateClockTest, TimeThatASnapshotHasShownIsNeverTakenBack) {
  FakeClock clock(0);
  StateClock lane(&clock);
  lane.Enter(StageState::kForward, 10);
  EXPECT_EQ(lane.Snapshot(100)[StageState::kForward], 90);
  lane.Enter(StageState::kSend, 99);
  const StateTimes later = lane.Snapshot(110);
  EXPECT_EQ(later[StageState::kForward], 90);
  EXPECT_EQ(later[StageState::kSend], 10);
}

TEST(StateClockTest, SnapshotsLeaveTheCellsAlone) {
  FakeClock clock(0);
  StateClock watched(&clock), unwatched(&clock);
  for (int64_t at = 0; at < 1000; at += 10) {
    const StageState state = at % 20 == 0 ? StageState::kForward : StageState::kHost;
    watched.Enter(state, at);
    unwatched.Enter(state, at);
    for (int64_t look = at; look < at + 10; ++look) watched.Snapshot(look);
  }
  EXPECT_EQ(watched.Snapshot(1000).nanos, unwatched.Snapshot(1000).nanos);
}

TEST(StateClockTest, SumsToWallTimeForRandomSequencesAndNeverFalls) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    FakeClock clock(static_cast<int64_t>(random() % 1'000'000'000'000));
    StateClock lane(&clock);
    std::array<int64_t, kStageStateCount> expected{};
    StageState running = StageState::kSetup;
    StateTimes before = lane.Snapshot();
    for (int i = 0; i < 500; ++i) {
      const auto passed = static_cast<int64_t>(random() % (random() % 10 == 0 ? 10'000'000'000 : 1000));
      clock.AdvanceNanos(passed);
      expected[static_cast<size_t>(running)] += passed;
      if (random() % 3 == 0) {
        const StateTimes now = lane.Snapshot();
        ASSERT_EQ(Sum(now), clock.NowNanos() - now.start_nanos);
        ASSERT_EQ(Sum(now), now.Total());
        ASSERT_EQ(now.nanos, expected);
        for (int s = 0; s < kStageStateCount; ++s) ASSERT_GE(now.nanos[s], before.nanos[s]);
        before = now;
      }
      running = static_cast<StageState>(random() % kStageStateCount);
      lane.Enter(running);
    }
  }
}

// Writers that race for one lane, and readers beside them: every snapshot is whole, and none is below an earlier one.
TEST(StateClockTest, ReadersBesideWritersSeeWholeTimes) {
  StateClock lane(RealClock());
  std::atomic<int> writers = 2;
  std::vector<std::unique_ptr<Thread>> threads;
  for (int w = 0; w < 2; ++w) {
    threads.push_back(std::make_unique<Thread>("writer", [&, w] {
      for (int i = 0; i < 20'000; ++i) lane.Enter(static_cast<StageState>((i * 7 + w) % kStageStateCount));
      --writers;
    }));
  }
  for (int r = 0; r < 2; ++r) {
    threads.push_back(std::make_unique<Thread>("reader", [&] {
      StateTimes before = lane.Snapshot();
      bool more = true;
      while (more) {
        more = writers > 0;
        const StateTimes now = lane.Snapshot();
        ASSERT_EQ(Sum(now), now.Total());
        for (int s = 0; s < kStageStateCount; ++s) ASSERT_GE(now.nanos[s], before.nanos[s]);
        before = now;
      }
    }));
  }
  threads.clear();
  const StateTimes end = lane.Snapshot();
  EXPECT_EQ(Sum(end), end.Total());
}

}  // namespace
}  // namespace penstock
