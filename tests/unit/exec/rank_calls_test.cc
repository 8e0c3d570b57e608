// Calls to a pipeline whose stages stand on several ranks: what one process does, they do.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/small_specs.h"
#include "tests/unit/exec/watched_ranks.h"

namespace penstock::testing {
namespace {

class RankCalls : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  static ContributionRequest Batch(int number) {
    return Contribution(Range({6, 3}).add(number).sin(), Range({6, 3}).add(number).cos());
  }
  static PipelineSpec Classifier() {
    PipelineSpec spec = Pipe({Built("linear", {{"in", int64_t{3}}, {"out", int64_t{5}}}, "first"),
                              Built("batch_norm", {{"features", int64_t{5}}}, "norm")},
                             {1, 1}, 3);
    spec.loss.name = "cross_entropy";
    return spec;
  }
  std::unique_ptr<Pipeline> Over(const PipelineSpec& spec) { return MakeOver(group_, spec, GetParam()); }
  std::unique_ptr<Pipeline> Alone(const PipelineSpec& spec) { return MakeAlone(alone_, spec); }

  WatchedGroup group_{3};
  DevicePool alone_{ThreeCpus(), DevicePool::Mode::kThreads};
};

TEST_P(RankCalls, EvaluateWithMetrics) {
  const auto over = Over(Classifier());
  const auto plain = Alone(Classifier());
  for (int number = 0; number < 3; ++number) {
    EvaluationRequest request;
    request.batch = Contribution(Range({7, 3}).add(number).sin(), at::arange(7).add(number).remainder(5));
    request.metrics = {"accuracy", "top_2_accuracy"};
    const auto got = Evaluate(*over, request);
    const auto want = Evaluate(*plain, request);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got->loss, *want->loss);
    EXPECT_EQ(got->metrics, want->metrics);
    EXPECT_EQ(got->metrics.size(), 2u);
    EXPECT_EQ(got->metric_elements, want->metric_elements);
    request.batch.loss = LossSpec{.name = "cross_entropy", .class_weights = {1, 2, 3, 4, 5}};
    EXPECT_EQ(*Evaluate(*over, request)->loss, *Evaluate(*plain, request)->loss) << "a loss of the call's own";
    for (Pipeline* each : {over.get(), plain.get()}) ASSERT_TRUE(each->TrainStep(request.batch, {}).ok());
  }
  EXPECT_TRUE(SameState(*over, *plain));
}

TEST_P(RankCalls, ExportGradientsOfTiedParameters) {
  const auto over = Over(TiedAroundBatchNorm());
  const auto plain = Alone(TiedAroundBatchNorm());
  for (int number = 0; number < 3; ++number) {
    for (Pipeline* each : {over.get(), plain.get()}) ASSERT_TRUE(each->ForwardBackward(Batch(number)).ok());
    const NamedTensors want = plain->ExportGradients().value();
    EXPECT_EQ(want.size(), 5u) << "the tied weight once";
    EXPECT_TRUE(SameTensors(over->ExportGradients().value(), want));
  }
  for (Pipeline* each : {over.get(), plain.get()}) ASSERT_TRUE(each->OptimizerStep({}).ok());
  EXPECT_TRUE(SameState(*over, *plain));
}

TEST_P(RankCalls, ImportWritesToEachRankOnlyWhatItHas) {
  const auto over = Over(TiedAroundBatchNorm());
  const auto plain = Alone(TiedAroundBatchNorm());
  ASSERT_TRUE(plain->TrainStep(Batch(0), {}).ok());
  const NamedTensors state = plain->ExportState(true).value();
  WatchedCommands::written.clear();
  ASSERT_TRUE(over->ImportState(state, 1).ok());
  EXPECT_TRUE(SameState(*over, *plain));
  for (const auto& [rank, written] : WatchedCommands::written) {
    for (const NamedTensor& entry : written) {
      const bool second = entry.name.find("layer2.") != std::string::npos;
      const bool tied = entry.name.find("layer0.weight") != std::string::npos;
      EXPECT_TRUE(tied || second == (GetParam()[1] == rank.value()) || GetParam()[0] == GetParam()[1]) << entry.name;
    }
    EXPECT_LT(written.size(), state.size());
  }
  for (Pipeline* each : {over.get(), plain.get()}) ASSERT_TRUE(each->TrainStep(Batch(1), {}).ok());
  EXPECT_TRUE(SameState(*over, *plain)) << "the copy of the tied weight was written, too";
}

TEST_P(RankCalls, AnImportThatFailsOnAnotherRankBreaksThePipelineUntilTheNext) {
  const auto over = Over(TiedAroundBatchNorm());
  const auto plain = Alone(TiedAroundBatchNorm());
  ASSERT_TRUE(plain->TrainStep(Batch(0), {}).ok());
  const NamedTensors state = plain->ExportState(true).value();
  group_.hooks.on_command = [](std::string_view command, Rank) {
    if (command != "WriteState") return absl::OkStatus();
    return absl::Status(Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no memory"));
  };
  const absl::Status failed = over->ImportState(state, 1);
  EXPECT_EQ(ReasonOf(failed), "PIPELINE_BROKEN") << failed;
  EXPECT_EQ(ValuesOf(failed)["cause"], "HOST_MEMORY");
  EXPECT_EQ(ReasonOf(over->TrainStep(Batch(1), {}).status()), "PIPELINE_BROKEN");
  group_.hooks.on_command = RankHooks().on_command;
  ASSERT_TRUE(over->ImportState(state, 1).ok());
  for (Pipeline* each : {over.get(), plain.get()}) ASSERT_TRUE(each->TrainStep(Batch(1), {}).ok());
  EXPECT_TRUE(SameState(*over, *plain));
}

TEST_P(RankCalls, AStepThatAnotherRankCannotUndoBreaksThePipeline) {
  Pipeline::Options options;
  options.fault_point = [](FaultPoint point, int stage) {
    if (point == FaultPoint::kUpdated && stage == 1) throw std::bad_alloc();
  };
  const auto over = MakeOver(group_, TiedAroundBatchNorm(), GetParam(), std::move(options));
  group_.hooks.on_command = [](std::string_view command, Rank) {
    if (command != "Undo") return absl::OkStatus();
    return absl::Status(Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no memory for an undo"));
  };
  for (int step = 0; step < 2; ++step) {
    const absl::Status status = over->TrainStep(Batch(step), {}).status();
    EXPECT_EQ(ReasonOf(status), "PIPELINE_BROKEN") << status;
    EXPECT_EQ(ValuesOf(status)["cause"], "HOST_MEMORY");
  }
}

TEST_P(RankCalls, SettingsThatOneRankCannotTakeAreTakenByNone) {
  const auto over = Over(TiedAroundBatchNorm());
  const auto plain = Alone(TiedAroundBatchNorm());
  OptimizerSpec other = over->optimizer();
  other.options["learning_rate"] = 0.25;
  int asked = 0;
  group_.hooks.on_command = [&](std::string_view command, Rank) {
    if (command != "UpdateOptimizer" || asked++ > 0) return absl::OkStatus();
    return absl::Status(Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no memory"));
  };
  EXPECT_EQ(ReasonOf(over->UpdateOptimizer(other)), "HOST_MEMORY");
  EXPECT_GT(asked, 1) << "and it takes the old ones again";
  for (Pipeline* each : {over.get(), plain.get()}) ASSERT_TRUE(each->TrainStep(Batch(0), {}).ok());
  EXPECT_TRUE(SameState(*over, *plain));
  for (Pipeline* each : {over.get(), plain.get()}) {
    ASSERT_TRUE(each->UpdateOptimizer(other).ok());
    ASSERT_TRUE(each->TrainStep(Batch(1), {}).ok());
  }
  EXPECT_TRUE(SameState(*over, *plain));
}

INSTANTIATE_TEST_SUITE_P(Placements, RankCalls,
                         ::testing::Values(std::vector<int>{0, 1}, std::vector<int>{1, 0}, std::vector<int>{1, 2}));

}  // namespace
}  // namespace penstock::testing
