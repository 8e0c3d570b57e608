#include "engine/schedule/timed_schedule.h"

#include "engine/schedule/build.h"
#include "engine/schedule/render.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// Given the times of a simulation, the same comes back: makespan, busy and idle time of each lane, its causes.
TEST(TimedScheduleTest, OfASimulatedRunItIsTheSimulation) {
  const auto lists =
      BuildSchedule({.kind = "1f1b", .purpose = SchedulePurpose::kContribution, .lanes = 3, .micro_batches = 5});
  ASSERT_TRUE(lists.ok()) << lists.status();
  ScheduleCosts costs;
  costs.hop = 500;
  for (int stage = 0; stage < 3; ++stage) costs.stages.push_back({.forward = 1000 + stage, .input_gradient = 1500});
  const auto simulated = Simulate(*lists, costs);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  std::vector<std::vector<TimedAction>> lanes;
  for (const auto& list : simulated->lanes) {
    lanes.emplace_back();
    for (const TimedAction& timed : list) {
      if (!IsCommunication(timed.action.kind)) lanes.back().push_back(timed);
    }
  }
  const Simulation again = SimulationOf(lanes);
  EXPECT_EQ(again.makespan, simulated->makespan);
  EXPECT_EQ(again.ideal, simulated->ideal);
  EXPECT_EQ(again.Bubble(), simulated->Bubble());
  for (int lane = 0; lane < 3; ++lane) {
    EXPECT_EQ(again.times[lane].busy, simulated->times[lane].busy);
    EXPECT_EQ(again.times[lane].fill, simulated->times[lane].fill);
    EXPECT_EQ(again.times[lane].drain, simulated->times[lane].drain);
    EXPECT_EQ(again.times[lane].wait_gradient, simulated->times[lane].wait_gradient);
    EXPECT_EQ(again.times[lane].wait_activation, simulated->times[lane].wait_activation);
  }
  EXPECT_EQ(RenderGantt(again), RenderGantt(*simulated));
}

TEST(TimedScheduleTest, NothingIsAnEmptyPicture) {
  const Simulation empty = SimulationOf({{}, {}});
  EXPECT_EQ(empty.makespan, 0);
  EXPECT_EQ(empty.times.size(), 2);
  EXPECT_THAT(RenderGantt(empty), HasSubstr("makespan 0"));
}

}  // namespace
}  // namespace penstock
