// What a lane with several stages counts.

#include <gtest/gtest.h>

#include <map>

#include "engine/observe/metrics.h"
#include "engine/plan/planner.h"
#include "tests/unit/exec/function_layers.h"
#include "tests/unit/exec/schedule_cases.h"

namespace penstock::testing {
namespace {

constexpr int kLanesMicroBatches = 4;

class ScheduleLanes : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> Make(const ScheduleCase& one, CheckpointMode mode) {
    Pipeline::Options options;
    options.devices = &world_.pool();
    options.profile = {.rows = 2, .repeats = 1};
    options.before_action = [this](const Action& action) { ++seen_[action.stage % 2][action.kind]; };
    options.metrics = [this](const Plan& plan) {
      std::vector<LaneDescription> lanes(LaneCount(plan));
      for (size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane].lane = static_cast<int>(lane);
      metrics_ = std::make_shared<PipelineMetrics>(RealClock(), "test", lanes, ScheduleDescription());
      return metrics_;
    };
    auto pipeline = Pipeline::Create(SpecOf(one, kLanesMicroBatches, mode), options);
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }

  int64_t Count(int lane, Phase phase) const { return metrics_->lane(lane).phases[phase].Snapshot().count(); }

  PipeWorld world_;
  std::map<int, std::map<ActionKind, int>> seen_;  // by lane, of looped placement on two
  std::shared_ptr<PipelineMetrics> metrics_;
};

TEST_F(ScheduleLanes, ALaneCountsTheActionsOfAllItsStages) {
  auto pipeline = Make({.kind = "interleaved-zb", .lanes = 2, .chunks = 2}, CheckpointMode::kExceptLast);
  ASSERT_EQ(metrics_->lane_count(), 2);
  const at::Tensor x = Range({2 * kLanesMicroBatches, kCaseWidth});
  const auto outcome = pipeline->TrainStep(Contribution(x, x), {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  for (const int lane : {0, 1}) {
    SCOPED_TRACE(lane);
    EXPECT_EQ(Count(lane, Phase::kForward), 2 * kLanesMicroBatches);
    EXPECT_EQ(Count(lane, Phase::kRecompute), 2 * (kLanesMicroBatches - 1));
    EXPECT_EQ(Count(lane, Phase::kBackward), seen_[lane][ActionKind::kBackward]);
    EXPECT_EQ(Count(lane, Phase::kBackwardInput), seen_[lane][ActionKind::kInputGradient]);
    EXPECT_EQ(Count(lane, Phase::kBackwardWeight), seen_[lane][ActionKind::kWeightGradient]);
    EXPECT_EQ(Count(lane, Phase::kBackward) + Count(lane, Phase::kBackwardWeight), 2 * kLanesMicroBatches);
    EXPECT_EQ(Count(lane, Phase::kOptimizer), 2 * 3);  // ties, norms, weights, of two stages
    EXPECT_EQ(metrics_->lane(lane).inflight_micro_batches.value(), 0);
  }
  // On lane 0 no I waits for its W: they are one action.
  EXPECT_GT(Count(1, Phase::kBackwardWeight), 0);
  const StateTimes times = metrics_->LaneTimes(RealClock()->NowNanos())[1];
  EXPECT_GT(times[StageState::kBackwardWeight], 0);
  EXPECT_GT(times[StageState::kBackwardInput], 0);
}

TEST_F(ScheduleLanes, TheOptimizersPartsAreGoneThroughStageByStage) {
  std::vector<std::string> log;
  PipeWorld world;
  world.before_action = [&log](const Action& action) {
    if (action.kind == ActionKind::kOptimizer) log.push_back(ToString(action));
  };
  auto pipeline =
      world.Make(SpecOf({.kind = "looped-bfs", .lanes = 1, .chunks = 2}, kLanesMicroBatches, CheckpointMode::kNever));
  const at::Tensor x = Range({2 * kLanesMicroBatches, kCaseWidth});
  ASSERT_TRUE(pipeline->TrainStep(Contribution(x, x), {}).ok());
  EXPECT_EQ(log, (std::vector<std::string>{"0OPT", "1OPT", "0OPT", "1OPT", "0OPT", "1OPT"}));
}

}  // namespace
}  // namespace penstock::testing
