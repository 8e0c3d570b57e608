// Two ranks' accounts of the same lanes, on one clock: what the rank of a lane reports, and what its leader makes of it.

#include "engine/observe/lanes_elsewhere.h"

#include <numeric>

#include "engine/observe/lane_reporter.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr Rank kOther(1);

class LanesElsewhereTest : public ::testing::Test {
 protected:
  LanesElsewhereTest() {
    lanes_.SetIdle(StageState::kNoWork);
    lanes_.Join(kOther);
  }

  // A run's time on the rank: begins there and ends, `late` after the leader has opened it and before it hears of it.
  void Run(bool inference, StageState work, int64_t nanos, int64_t late = 0) {
    lanes_.Open(inference);
    clock_.AdvanceNanos(late);
    reporter_.Open();
    Works(work, nanos);
    const LaneReports reports = reporter_.Take();
    reporter_.Close();
    clock_.AdvanceNanos(late);
    lanes_.Take(kOther, reports);
    lanes_.Leave(kOther);
  }
  void Works(StageState work, int64_t nanos) {
    there_.lane(1).state.Enter(work);
    clock_.AdvanceNanos(nanos);
    there_.lane(1).state.Enter(StageState::kDrain);
  }
  int64_t In(StageState state) const { return here_.lane(1).state.Snapshot()[state]; }
  // That no time is lost or counted twice.
  void ExpectConserved() const {
    const StateTimes times = here_.lane(1).state.Snapshot();
    EXPECT_EQ(std::accumulate(times.nanos.begin(), times.nanos.end(), int64_t{0}), times.Total());
  }

  static std::vector<LaneDescription> Lanes() {
    return {{.lane = 0, .device = "cpu:0", .rank = Rank(0)}, {.lane = 1, .device = "1/cpu:0", .rank = kOther}};
  }
  testing::FakeClock clock_{0};
  PipelineMetrics here_{&clock_, "p", Lanes(), {}};   // the leader's
  PipelineMetrics there_{&clock_, "p", Lanes(), {}};  // the other rank's
  LanesElsewhere lanes_{&here_};
  LaneReporter reporter_{&there_, kOther};
};

TEST_F(LanesElsewhereTest, TheTimeOfARunIsSplitAsTheRankTells) {
  Run(/*inference=*/false, StageState::kForward, 100 * kMilli);
  EXPECT_EQ(In(StageState::kForward), 100 * kMilli);
  EXPECT_EQ(here_.lane(1).state.state(), StageState::kDrain) << "the step is open until all ranks have left";
  clock_.AdvanceNanos(5 * kMilli);
  lanes_.End(/*inference=*/false);
  EXPECT_EQ(here_.lane(1).state.state(), StageState::kNoWork);
  clock_.AdvanceNanos(7 * kMilli);
  EXPECT_EQ(In(StageState::kDrain), 5 * kMilli);
  EXPECT_EQ(In(StageState::kNoWork), 7 * kMilli);
  EXPECT_EQ(here_.lane(1).state.Snapshot().Total(), 112 * kMilli) << "as that of a lane of its own";
  ExpectConserved();
}

TEST_F(LanesElsewhereTest, WhileMessagesAreOnTheirWayALaneWaitsForItsFirstInput) {
  Run(/*inference=*/false, StageState::kForward, 100 * kMilli, /*late=*/3 * kMilli);
  EXPECT_EQ(In(StageState::kForward), 100 * kMilli);
  EXPECT_EQ(In(StageState::kFill), 6 * kMilli);
  ExpectConserved();
}

TEST_F(LanesElsewhereTest, WhatTheRankDidBetweenRunsTheLeaderCountsByItself) {
  Run(/*inference=*/false, StageState::kForward, 100 * kMilli);
  lanes_.End(/*inference=*/false);
  lanes_.SetIdle(StageState::kWaitClient);
  clock_.AdvanceNanos(40 * kMilli);
  Run(/*inference=*/false, StageState::kBackward, 200 * kMilli);
  lanes_.End(/*inference=*/false);
  EXPECT_EQ(In(StageState::kWaitClient), 40 * kMilli);
  EXPECT_EQ(In(StageState::kDrain), 0);
  EXPECT_EQ(In(StageState::kForward), 100 * kMilli) << "once";
  EXPECT_EQ(In(StageState::kBackward), 200 * kMilli);
  ExpectConserved();
}

// An inference is open while a step comes and goes: each report begins where the one before has ended.
TEST_F(LanesElsewhereTest, RunsAtTheSameTimeAreToldOnce) {
  lanes_.Open(/*inference=*/true);
  reporter_.Open();
  Works(StageState::kInfer, 10 * kMilli);
  Run(/*inference=*/false, StageState::kForward, 100 * kMilli);
  EXPECT_EQ(In(StageState::kInfer), 10 * kMilli);
  EXPECT_EQ(In(StageState::kForward), 100 * kMilli);
  lanes_.End(/*inference=*/false);
  Works(StageState::kInfer, 20 * kMilli);
  EXPECT_EQ(In(StageState::kInfer), 10 * kMilli) << "not told yet";
  lanes_.Take(kOther, reporter_.Take());
  reporter_.Close();
  lanes_.Leave(kOther);
  lanes_.End(/*inference=*/true);
  EXPECT_EQ(In(StageState::kInfer), 30 * kMilli);
  EXPECT_EQ(In(StageState::kForward), 100 * kMilli);
  EXPECT_EQ(here_.lane(1).state.Snapshot().Total(), 130 * kMilli);
  ExpectConserved();
}

TEST_F(LanesElsewhereTest, OfALostRankTheTimeIsNotLost) {
  lanes_.Open(/*inference=*/true);
  clock_.AdvanceNanos(30 * kMilli);
  EXPECT_EQ(here_.lane(1).state.Snapshot().Total(), 0) << "nobody knows yet";
  lanes_.Leave(kOther);
  lanes_.End(/*inference=*/true);
  EXPECT_EQ(In(StageState::kInferWait), 30 * kMilli);
  ExpectConserved();
}

TEST_F(LanesElsewhereTest, ActionsAndMemoryAddUpToTheRanksOwn) {
  for (const int64_t nanos : {1 * kMilli, 300 * kMilli}) {
    there_.lane(1).ObservePhase(Phase::kForward, nanos);
    (*there_.lane(1).memory)[MemoryKind::kStash].Set(static_cast<double>(nanos));
    Run(/*inference=*/false, StageState::kForward, nanos);
    lanes_.End(/*inference=*/false);
  }
  const HistogramSnapshot here = here_.lane(1).phases[Phase::kForward].Snapshot();
  const HistogramSnapshot there = there_.lane(1).phases[Phase::kForward].Snapshot();
  EXPECT_EQ(here.count(), 2);
  EXPECT_EQ(here.cumulative, there.cumulative);
  EXPECT_EQ(here.sum_nanos, there.sum_nanos);
  EXPECT_EQ((*here_.lane(1).memory)[MemoryKind::kStash].value(), 300 * kMilli);
}

TEST_F(LanesElsewhereTest, ARankTellsNothingOfLanesThatAreNotItsOwn) {
  lanes_.Open(/*inference=*/false);
  LaneReport report{.lane = 0};
  report.memory_bytes[0] = 5;
  lanes_.Take(kOther, {report});
  report.lane = 7;
  lanes_.Take(kOther, {report});
  EXPECT_EQ(here_.lane(0).memory->at(0).value(), 0);
}

}  // namespace
}  // namespace penstock
