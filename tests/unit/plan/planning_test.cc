#include "engine/plan/planning.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

TEST(Planning, TheBudgetBeginsWithMeasuringAndEachPhaseLeavesTimeToTheNext) {
  testing::FakeClock clock;
  Planning planning(&clock, 20);
  clock.Advance(absl::Seconds(100));  // others were made before it
  planning.Enter(PlanPhase::kLoading, 1);
  clock.Advance(absl::Seconds(100));
  EXPECT_FALSE(planning.OutOfTime());
  planning.Enter(PlanPhase::kMeasuring, 1);
  EXPECT_DOUBLE_EQ(planning.SecondsLeft(), 8);
  clock.Advance(absl::Seconds(8));
  EXPECT_TRUE(planning.OutOfTime());
  planning.Enter(PlanPhase::kSearching, 1);
  EXPECT_FALSE(planning.OutOfTime());
  planning.Enter(PlanPhase::kConfirming, 1);
  EXPECT_DOUBLE_EQ(planning.SecondsLeft(), 7) << "what the search has left over, too";
  clock.Advance(absl::Seconds(30));
  for (const PlanPhase phase : {PlanPhase::kRehearsing, PlanPhase::kBuilding}) {
    planning.Enter(phase, 1);
    EXPECT_TRUE(planning.OutOfTime());
    EXPECT_EQ(planning.SecondsLeft(), 0);
  }
  EXPECT_TRUE(planning.CheckWanted().ok()) << "late, but wanted";
}

TEST(Planning, ProgressRisesWithPartsAndPhases) {
  testing::FakeClock clock;
  Planning planning(&clock, 20);
  EXPECT_EQ(planning.progress().done, 0);
  EXPECT_EQ(PlanPhaseName(planning.progress().phase), "waiting");
  planning.Enter(PlanPhase::kMeasuring, 4);
  planning.PartDone();
  clock.Advance(absl::Seconds(2));
  EXPECT_DOUBLE_EQ(planning.progress().done, 0.1);
  EXPECT_DOUBLE_EQ(planning.progress().elapsed_seconds, 2);
  for (int i = 0; i < 9; ++i) planning.PartDone();
  EXPECT_DOUBLE_EQ(planning.progress().done, 0.4) << "more than was thought";
  planning.Enter(PlanPhase::kBuilding, 2);
  EXPECT_DOUBLE_EQ(planning.progress().done, 0.9);
  planning.Enter(PlanPhase::kMeasuring, 1);
  EXPECT_EQ(PlanPhaseName(planning.progress().phase), "building") << "it never falls";
  planning.PartDone();
  planning.PartDone();
  EXPECT_DOUBLE_EQ(planning.progress().done, 1);
}

TEST(Planning, WhatNobodyWantsEnds) {
  testing::FakeClock clock;
  bool unwanted = false;
  Planning planning(&clock, 20, [&] { return unwanted; });
  EXPECT_FALSE(planning.OutOfTime());
  unwanted = true;
  EXPECT_TRUE(planning.OutOfTime());
  EXPECT_EQ(planning.CheckWanted().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ReasonOf(planning.CheckWanted()), "WORK_CANCELLED");
}

TEST(Planning, WithoutABudgetThereIsTimeForEverything) {
  EndlessPlanning()->Enter(PlanPhase::kBuilding, 1);
  EXPECT_FALSE(EndlessPlanning()->OutOfTime());
}

}  // namespace
}  // namespace penstock
