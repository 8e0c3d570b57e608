#include "engine/schedule/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/optimizer_pass.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr Ticks kUnit = kTicksPerUnit;

ScheduleCosts EqualCosts(int stages, Ticks hop = 0) { return {.stages = std::vector<StageCosts>(stages), .hop = hop}; }

TEST(SimulateTest, AnActionStartsWhenItsLaneAndItsInputsAreReady) {
  const auto simulation = Simulate(FillDrain(2, 2), EqualCosts(2, kUnit / 2));
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const auto starts = [&](int lane) {
    std::vector<double> units;
    for (const TimedAction& timed : simulation->lanes[lane]) {
      units.push_back(static_cast<double>(timed.start) / kUnit);
    }
    return units;
  };
  EXPECT_EQ(starts(0), (std::vector<double>{0, 1, 6, 8}));
  EXPECT_EQ(starts(1), (std::vector<double>{1.5, 2.5, 3.5, 5.5}));
  EXPECT_EQ(simulation->makespan, 10 * kUnit);
  EXPECT_EQ(simulation->ideal, 6 * kUnit);
  EXPECT_EQ(simulation->window, 10 * kUnit);
  EXPECT_DOUBLE_EQ(simulation->Overhead(), 4.0 / 6);
  EXPECT_DOUBLE_EQ(simulation->Bubble(), 0.4);
}

// By hand: a message takes 2 of the link, one after the other, and half a unit more to arrive.
TEST(SimulateTest, MessagesWaitForEachOtherOnALink) {
  ScheduleCosts costs = EqualCosts(2);
  costs.edges[{0, 1}] = {.transfer = 2 * kUnit, .latency = kUnit / 2};
  for (const Schedule& lists : {FillDrain(2, 2), InsertCommunication(FillDrain(2, 2))}) {
    const auto simulation = Simulate(lists, costs);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    const auto starts = [&](int lane) {
      std::vector<double> units;
      for (const TimedAction& timed : simulation->lanes[lane]) {
        if (!IsCommunication(timed.action.kind)) units.push_back(static_cast<double>(timed.start) / kUnit);
      }
      return units;
    };
    EXPECT_EQ(starts(0), (std::vector<double>{0, 1, 11, 13}));
    EXPECT_EQ(starts(1), (std::vector<double>{3.5, 5.5, 6.5, 8.5}));
    EXPECT_EQ(simulation->makespan, 15 * kUnit);
  }
  costs.hop = kUnit;
  EXPECT_EQ(Simulate(FillDrain(2, 2), costs)->makespan, 17 * kUnit);  // both count
}

TEST(SimulateTest, ALinkThatTakesNoTimeIsNone) {
  ScheduleCosts costs = EqualCosts(4, kUnit / 3);
  const auto without = Simulate(OneForwardOneBackward(4, 7), costs);
  costs.edges[{1, 2}] = {};
  costs.edges[{0, 3}] = {.transfer = kUnit, .latency = kUnit};  // that nothing goes over
  const auto with = Simulate(OneForwardOneBackward(4, 7), costs);
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_EQ(with->makespan, without->makespan);
  costs.edges[{1, 2}] = {.latency = 1};
  EXPECT_GT(Simulate(OneForwardOneBackward(4, 7), costs)->makespan, without->makespan);
}

TEST(SimulateTest, IdleTimeIsChargedToItsCause) {
  const auto simulation = Simulate(FillDrain(2, 2), EqualCosts(2, kUnit / 2));
  ASSERT_TRUE(simulation.ok());
  EXPECT_EQ(simulation->times[0].busy, 6 * kUnit);
  EXPECT_EQ(simulation->times[0].fill, 0);
  EXPECT_EQ(simulation->times[0].wait_gradient, 4 * kUnit);
  EXPECT_EQ(simulation->times[0].drain, 0);
  EXPECT_EQ(simulation->times[1].fill, kUnit * 3 / 2);
  EXPECT_EQ(simulation->times[1].drain, kUnit * 5 / 2);
  ASSERT_EQ(simulation->idle[1].size(), 2u);
  EXPECT_EQ(simulation->idle[1][0].cause, IdleCause::kFill);
  EXPECT_EQ(simulation->idle[1][1].cause, IdleCause::kDrain);
  EXPECT_EQ(simulation->idle[1][1].start, kUnit * 15 / 2);
}

TEST(SimulateTest, ASlowFirstStageMakesTheSecondWaitForActivations) {
  ScheduleCosts costs = EqualCosts(2);
  costs.stages[0].forward = 3 * kUnit;
  const auto simulation = Simulate(ForwardOnly(2, 3), costs);
  EXPECT_EQ(simulation->times[1].fill, 3 * kUnit);
  EXPECT_EQ(simulation->times[1].wait_activation, 4 * kUnit);
  EXPECT_EQ(simulation->makespan, 10 * kUnit);
}

TEST(SimulateTest, SendsAndReceivesChangeNoTime) {
  for (const char* kind : {"gpipe", "1f1b", "forward-only"}) {
    ScheduleCosts costs = EqualCosts(4, kUnit / 3);
    costs.stages[2].forward = 2 * kUnit;
    const Schedule schedule = *Generate({kind, 4, 6});
    const auto compute = Simulate(schedule, costs);
    const auto complete = Simulate(InsertCommunication(schedule), costs);
    ASSERT_TRUE(complete.ok()) << complete.status();
    EXPECT_EQ(complete->makespan, compute->makespan) << kind;
    EXPECT_EQ(complete->window, compute->window) << kind;
    for (int lane = 0; lane < 4; ++lane) {
      EXPECT_EQ(complete->times[lane].fill, compute->times[lane].fill);
      EXPECT_EQ(complete->times[lane].wait_activation, compute->times[lane].wait_activation);
      EXPECT_EQ(complete->times[lane].wait_gradient, compute->times[lane].wait_gradient);
      EXPECT_EQ(complete->times[lane].drain, compute->times[lane].drain);
    }
  }
}

TEST(SimulateTest, StagesOfOneLanePayNoHop) {
  const auto schedule = ParseCsv("0F0,1F0,1B0,0B0\n");
  EXPECT_EQ(Simulate(*schedule, EqualCosts(2, 5 * kUnit))->makespan, 6 * kUnit);
}

TEST(SimulateTest, ASplitBackwardLetsTheNextLaneStartEarlier) {
  EXPECT_EQ(Simulate(*ParseCsv("0F0,0B0\n1F0,1B0\n"), EqualCosts(2))->makespan, 6 * kUnit);
  EXPECT_EQ(Simulate(*ParseCsv("0F0,0I0,0W0\n1F0,1I0,1W0\n"), EqualCosts(2))->makespan, 5 * kUnit);
}

TEST(SimulateTest, AFusedBackwardMayCostLessThanItsHalves) {
  ScheduleCosts costs = EqualCosts(2);
  EXPECT_EQ(Simulate(*ParseCsv("0F0,0B0\n1F0,1I0,1W0\n"), costs)->makespan, 5 * kUnit);
  for (StageCosts& stage : costs.stages) stage.backward = kUnit / 2;
  const auto simulation = Simulate(*ParseCsv("0F0,0B0\n1F0,1I0,1W0\n"), costs);
  EXPECT_EQ(simulation->lanes[0].back().end, 3 * kUnit + kUnit / 2);
  EXPECT_EQ(simulation->makespan, 4 * kUnit);  // halves cost what they cost
  costs.stages[1].backward = -1;
  EXPECT_EQ(ValuesOf(Simulate(FillDrain(2, 1), costs).status())["field"], "costs.backward");
}

// Lane 0 holds stages 0 and 3 of a V, lane 1 the two between.
TEST(SimulateTest, IdleTimeHasItsCauseWithSeveralStagesPerRank) {
  const auto simulation =
      Simulate(*ParseCsv("0F0,3F0,3B0,0B0,0OPT,3OPT\n1F0,2F0,2B0,1B0,1OPT,2OPT\n"), EqualCosts(4, kUnit / 2));
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const LaneTimes& outer = simulation->times[0];
  EXPECT_EQ(outer.fill, 0);
  EXPECT_EQ(outer.wait_activation, 3 * kUnit);  // for stages 1 and 2, a hop before and one after
  EXPECT_EQ(outer.wait_gradient, 5 * kUnit);
  EXPECT_EQ(outer.busy, 6 * kUnit);
  EXPECT_EQ(outer.drain, 0);
  const LaneTimes& inner = simulation->times[1];
  EXPECT_EQ(inner.fill, kUnit + kUnit / 2);
  EXPECT_EQ(inner.wait_activation, 0);        // stage 2 follows stage 1 on the same lane
  EXPECT_EQ(inner.wait_gradient, 4 * kUnit);  // stage 3 has one forward and one backward to do, and two hops
  EXPECT_EQ(inner.drain, 2 * kUnit + kUnit / 2);
  EXPECT_EQ(simulation->makespan, 14 * kUnit);
}

TEST(SimulateTest, OptimizerStepsMayWaitForEachOther) {
  ScheduleCosts costs = EqualCosts(2);
  for (StageCosts& stage : costs.stages) stage.optimizer = kUnit;
  const Schedule schedule = AppendOptimizer(FillDrain(2, 1), {0, 1});
  const auto free = Simulate(schedule, costs);
  EXPECT_EQ(free->makespan, 7 * kUnit);
  EXPECT_EQ(free->lanes[1].back().start, 4 * kUnit);
  costs.optimizer_barrier = true;
  const auto barrier = Simulate(schedule, costs);
  EXPECT_EQ(barrier->makespan, 7 * kUnit);
  EXPECT_EQ(barrier->lanes[1].back().start, 6 * kUnit);
  EXPECT_EQ(barrier->times[1].wait_barrier, 2 * kUnit);
  EXPECT_EQ(barrier->times[1].drain, 0);
}

TEST(SimulateTest, NothingCostsNothing) {
  ScheduleCosts costs;
  costs.stages.assign(2, {.forward = 0, .input_gradient = 0, .weight_gradient = 0, .recompute = 0});
  const auto simulation = Simulate(FillDrain(2, 2), costs);
  ASSERT_TRUE(simulation.ok());
  EXPECT_EQ(simulation->makespan, 0);
  EXPECT_EQ(simulation->Bubble(), 0);
  EXPECT_EQ(simulation->Overhead(), 0);
}

TEST(SimulateTest, TheLargestCostsDoNotOverflow) {
  ScheduleCosts costs;
  costs.stages.assign(16, {.forward = kMaxCost, .input_gradient = kMaxCost, .weight_gradient = kMaxCost});
  costs.hop = kMaxCost;
  const auto simulation = Simulate(FillDrain(16, kMaxCells / 16), costs);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_EQ(simulation->ideal, 3 * kMaxCost * (kMaxCells / 16));
  EXPECT_EQ(simulation->makespan, simulation->ideal + 15 * 5 * kMaxCost);
}

TEST(SimulateTest, RefusesCostsByName) {
  const auto field = [](const ScheduleCosts& costs) {
    const auto simulation = Simulate(FillDrain(2, 1), costs);
    return simulation.ok() ? "accepted" : ValuesOf(simulation.status())["field"];
  };
  EXPECT_EQ(field(EqualCosts(3)), "costs");
  EXPECT_EQ(field(EqualCosts(2, -1)), "costs.hop");
  ScheduleCosts costs = EqualCosts(2);
  costs.stages[1].weight_gradient = kMaxCost + 1;
  EXPECT_EQ(field(costs), "costs.weight_gradient");
  for (const auto& ends : {std::pair(1, 0), {0, 0}, {0, 2}, {-1, 1}}) {
    costs = EqualCosts(2);
    costs.edges[ends] = {};
    EXPECT_EQ(field(costs), "costs.edges") << ends.first << "-" << ends.second;
  }
  costs = EqualCosts(2);
  costs.edges[{0, 1}] = {.latency = -1};
  EXPECT_EQ(field(costs), "costs.edges.latency");
  costs.edges[{0, 1}] = {.transfer = kMaxCost + 1};
  EXPECT_EQ(field(costs), "costs.edges.transfer");
}

TEST(SimulateTest, ListsThatCannotEndAreExplained) {
  const auto stuck = Simulate(*ParseCsv("0B0,0F0\n"), EqualCosts(1));
  EXPECT_THAT(std::string(stuck.status().message()),
              HasSubstr("deadlock at lane 0, position 0 (0B0)\n  0B0 waits for 0F0; 0F0 follows 0B0 on lane 0\n"));
  const auto hollow = Simulate(*ParseCsv("0F0\n1F0,1F1\n"), EqualCosts(2));
  EXPECT_THAT(std::string(hollow.status().message()), HasSubstr("1F1 needs 0F1, which no lane performs"));
  EXPECT_FALSE(Simulate(*ParseCsv("0F0,0OPT,0B0\n"), EqualCosts(1)).ok());
}

}  // namespace
}  // namespace penstock
