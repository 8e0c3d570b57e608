#include "engine/filling/action_costs.h"

#include <gtest/gtest.h>

#include "engine/plan/planner.h"
#include "engine/schedule/build.h"

namespace penstock {
namespace {

Plan TwoStages() {
  Plan plan;
  plan.stages.resize(2);
  for (StagePlan& stage : plan.stages) {
    stage.forward_seconds = stage.recompute_seconds = 1e-6;
    stage.backward_seconds = 2e-6;
  }
  return plan;
}

TEST(TrainingCosts, StartsFromThePlanTakesTheFirstRunAsItIsAndThenMovesSlowly) {
  TrainingCosts costs(CostsOf(TwoStages()));
  EXPECT_EQ(costs.Costs(4).stages[1].forward, 1000);
  EXPECT_EQ(costs.Costs(4).stages[1].backward, 2000);
  costs.Learn(4, {{{1, ActionKind::kForward}, {.nanos = 6000, .count = 2}}});
  EXPECT_EQ(costs.Costs(4).stages[1].forward, 3000);
  EXPECT_EQ(costs.Costs(4).stages[0].forward, 1000);
  EXPECT_EQ(costs.Costs(8).stages[1].forward, 1000);  // other rows, other costs
  costs.Learn(4, {{{1, ActionKind::kForward}, {.nanos = 7000, .count = 1}}});
  EXPECT_EQ(costs.Costs(4).stages[1].forward, 4000);
}

TEST(TrainingCosts, ForecastsAnewWhenCostsHaveMoved) {
  TrainingCosts costs(CostsOf(TwoStages()));
  auto lists = std::make_shared<const Schedule>(*BuildSchedule({.kind = "1f1b", .lanes = 2, .micro_batches = 2}));
  const auto first = costs.Forecast(lists, 4, true);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->lanes[1][0].start, 1000);
  costs.Learn(4, {{{0, ActionKind::kForward}, {.nanos = 1001, .count = 1}}});
  EXPECT_EQ(costs.Forecast(lists, 4, true), first);
  costs.Learn(4, {{{0, ActionKind::kForward}, {.nanos = 2001, .count = 1}}});
  EXPECT_EQ(costs.Forecast(lists, 4, true)->lanes[1][0].start, 1251);
}

TEST(InferenceCosts, ScalesTheForwardUntilItHasSeenTheRows) {
  InferenceCosts costs({1000, 0}, 4);
  EXPECT_EQ(costs.Expected(StageIndex(0), 4), 1000);
  EXPECT_EQ(costs.Expected(StageIndex(0), 8), 2000);
  EXPECT_EQ(costs.Expected(StageIndex(0), 1), 1000);
  EXPECT_EQ(costs.Expected(StageIndex(1), 4), kNever);
  costs.Observe(StageIndex(1), 4, 700);
  EXPECT_EQ(costs.Expected(StageIndex(1), 4), 700);
}

TEST(InferenceCosts, ExpectsMoreOfWhatVaries) {
  InferenceCosts costs({1000}, 4);
  for (int i = 0; i < 400; ++i) costs.Observe(StageIndex(0), 4, i % 2 == 0 ? 900 : 1100);
  EXPECT_NEAR(static_cast<double>(costs.Expected(StageIndex(0), 4)), 1100, 20);
}

TEST(InferenceCosts, SumsTheWayToTheEnd) {
  InferenceCosts costs({100, 200, 300}, 4);
  EXPECT_EQ(costs.MinToEnd(StageIndex(0), 4, 0), 600);
  EXPECT_EQ(costs.MinToEnd(StageIndex(1), 4, 2), 1100);
}

}  // namespace
}  // namespace penstock
