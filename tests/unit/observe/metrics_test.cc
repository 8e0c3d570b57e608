#include "engine/observe/metrics.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;

constexpr int64_t kOneSecond = 1'000'000'000;

PipelineMetrics TwoLanes(Clock* clock) {
  return PipelineMetrics(clock, "gpt",
                         {{.lane = 0, .device = "cpu:0", .layers = "0-3", .ideal_bubble = 0.2},
                          {.lane = 1, .device = "cpu:1", .layers = "4-7", .predicted_bubble = 0.3}},
                         {.kind = "1f1b", .stages = 2, .micro_batches = 4, .checkpoint_mode = "never"});
}

TEST(LaneMetricsTest, AnActionCountsItsDurationAndMarksProgress) {
  FakeClock clock(100 * kOneSecond);
  LaneMetrics lane(&clock, {});
  EXPECT_EQ(lane.last_progress.seconds(), 100);
  clock.AdvanceNanos(5 * kOneSecond);
  lane.ObservePhase(Phase::kBackward, 2 * kOneSecond);
  EXPECT_EQ(lane.last_progress.seconds(), 105);
  EXPECT_EQ(lane.phases[Phase::kBackward].Snapshot().sum_nanos, 2 * kOneSecond);
  EXPECT_EQ(lane.phases[Phase::kForward].Snapshot().count(), 0);
}

TEST(PipelineMetricsTest, StartsWithWhatItsLanesAre) {
  FakeClock clock;
  const PipelineMetrics pipeline = TwoLanes(&clock);
  ASSERT_EQ(pipeline.lane_count(), 2);
  EXPECT_EQ(pipeline.lane(1).description.device, "cpu:1");
  EXPECT_EQ(pipeline.lane(0).ideal_bubble.value(), 0.2);
  EXPECT_EQ(pipeline.lane(1).predicted_bubble.value(), 0.3);
  EXPECT_EQ(pipeline.schedule().kind, "1f1b");
}

TEST(PipelineMetricsTest, LaneTimesAreOfOneInstant) {
  FakeClock clock;
  PipelineMetrics pipeline = TwoLanes(&clock);
  clock.AdvanceNanos(40);
  pipeline.lane(1).state.Enter(StageState::kNoWork);
  const std::vector<StateTimes> times = pipeline.LaneTimes(clock.NowNanos() + 10);
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].at_nanos, times[1].at_nanos);
  EXPECT_EQ(times[0][StageState::kSetup], 50);
  EXPECT_EQ(times[1][StageState::kNoWork], 10);
}

TEST(PipelineMetricsTest, ABatchIsStartedActiveAndEndedOnce) {
  FakeClock clock;
  PipelineMetrics pipeline = TwoLanes(&clock);
  pipeline.BatchStarted(BatchMode::kTrain);
  pipeline.BatchStarted(BatchMode::kTrain);
  EXPECT_EQ(pipeline.runs_active[BatchMode::kTrain].value(), 2);
  pipeline.BatchEnded(BatchMode::kTrain, BatchOutcome::kOk, 8, kOneSecond);
  pipeline.BatchEnded(BatchMode::kTrain, BatchOutcome::kFailed, 8, kOneSecond);
  EXPECT_EQ(pipeline.batches_started[BatchMode::kTrain].value(), 2);
  EXPECT_EQ(pipeline.batches[BatchMode::kTrain][BatchOutcome::kOk].value(), 1);
  EXPECT_EQ(pipeline.batches[BatchMode::kTrain][BatchOutcome::kFailed].value(), 1);
  EXPECT_EQ(pipeline.samples[BatchMode::kTrain].value(), 8) << "a failed batch has no samples";
  EXPECT_EQ(pipeline.runs_active[BatchMode::kTrain].value(), 0);
  EXPECT_EQ(pipeline.batch_duration[BatchMode::kTrain].Snapshot().count(), 2);
  EXPECT_EQ(pipeline.batches_started[BatchMode::kInfer].value(), 0);
}

TEST(PipelineMetricsTest, OnlyAGoodSaveMarksTheLastSuccess) {
  FakeClock clock(10 * kOneSecond);
  PipelineMetrics pipeline = TwoLanes(&clock);
  EXPECT_EQ(pipeline.checkpoint_last_success.seconds(), 10);
  clock.AdvanceNanos(kOneSecond);
  pipeline.CheckpointEnded(CheckpointOperation::kSave, false, 1);
  pipeline.CheckpointEnded(CheckpointOperation::kRestore, true, 1);
  EXPECT_EQ(pipeline.checkpoint_last_success.seconds(), 10);
  EXPECT_EQ(pipeline.checkpoint_failures[CheckpointOperation::kSave].value(), 1);
  pipeline.CheckpointEnded(CheckpointOperation::kSave, true, 1);
  EXPECT_EQ(pipeline.checkpoint_last_success.seconds(), 11);
  EXPECT_EQ(pipeline.checkpoint_duration[CheckpointOperation::kSave].Snapshot().count(), 2);
}

TEST(QueueMetricsTest, AgeIsThatOfTheHead) {
  QueueMetrics queue;
  EXPECT_EQ(queue.OldestAgeSeconds(5 * kOneSecond), 0);
  queue.oldest_nanos = 2 * kOneSecond;
  EXPECT_EQ(queue.OldestAgeSeconds(5 * kOneSecond), 3);
  EXPECT_EQ(queue.OldestAgeSeconds(kOneSecond), 0) << "never negative";
  queue.oldest_nanos = QueueMetrics::kEmpty;
  EXPECT_EQ(queue.OldestAgeSeconds(5 * kOneSecond), 0);
}

TEST(ServerMetricsTest, UnknownMethodsCountAsOther) {
  ServerMetrics server;
  MethodMetrics& known = server.AddMethod("unary", "penstock.v1.WorkService", "TrainStep");
  EXPECT_EQ(&server.AddMethod("unary", "penstock.v1.WorkService", "TrainStep"), &known);
  EXPECT_EQ(&server.MethodOf("/penstock.v1.WorkService/TrainStep"), &known);
  for (std::string_view path : {"/penstock.v1.WorkService/Other", "", "/", "x"}) {
    EXPECT_EQ(server.MethodOf(path).method, "other") << path;
  }
  std::vector<std::string> methods;
  for (const MethodMetrics* method : server.methods()) methods.push_back(method->method);
  EXPECT_THAT(methods, ElementsAre("other", "TrainStep"));
}

TEST(MethodMetricsTest, CodesOutsideTheTableCountAsUnknown) {
  MethodMetrics method("unary", "s", "m");
  for (int code : {0, 16, 17, -1}) method.Handled(code, kOneSecond);
  EXPECT_EQ(method.handled_by_code[0].value(), 1);
  EXPECT_EQ(method.handled_by_code[16].value(), 1);
  EXPECT_EQ(method.handled_by_code[2].value(), 2);
  EXPECT_EQ(method.duration.Snapshot().count(), 4);
}

}  // namespace
}  // namespace penstock
