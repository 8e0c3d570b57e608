#include "server/rpc/convert/inference_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/base/error.h"
#include "server/rpc/convert/inference_request.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

// The numbers are other clients'.
TEST(InferenceModels, AConfigurationHasNamesTypesAndAllDimensions) {
  ModelSignature signature;
  const std::map<DataType, int> numbers = {
      {DataType::kBool, 1},   {DataType::kUint8, 2}, {DataType::kUint16, 3}, {DataType::kUint32, 4},
      {DataType::kUint64, 5}, {DataType::kInt8, 6},  {DataType::kInt16, 7},  {DataType::kInt32, 8},
      {DataType::kInt64, 9},  {DataType::kFp16, 10}, {DataType::kFp32, 11},  {DataType::kFp64, 12},
      {DataType::kBf16, 14},
  };
  for (const auto& [type, number] : numbers) {
    signature.inputs.push_back({.name = "IN " + std::to_string(number), .type = type, .shape = {-1, number}});
  }
  ASSERT_EQ(signature.inputs.size(), size_t{kDataTypeCount - 1});
  signature.outputs = {{.name = "cache", .any = true}, {.name = "OUT", .type = DataType::kFp32, .shape = {-1, 2, 3}}};
  const inference::ModelConfig config = ConfigOf("simple", signature);
  EXPECT_EQ(config.name(), "simple");
  EXPECT_EQ(config.max_batch_size(), 0);
  ASSERT_EQ(config.input_size(), kDataTypeCount - 1);
  for (const inference::ModelInput& input : config.input()) {
    EXPECT_EQ(input.name(), "IN " + std::to_string(input.data_type()));
    EXPECT_THAT(input.dims(), ElementsAre(-1, input.data_type()));
  }
  ASSERT_EQ(config.output_size(), 1) << "what is no tensor is left out";
  EXPECT_EQ(config.output(0).name(), "OUT");
  EXPECT_THAT(config.output(0).dims(), ElementsAre(-1, 2, 3));
}

TEST(InferenceModels, StatisticsCountInferenceAlone) {
  testing::FakeClock clock;
  PipelineMetrics metrics(&clock, "gpt", {}, {});
  metrics.BatchStarted(BatchMode::kInfer);
  metrics.BatchEnded(BatchMode::kInfer, BatchOutcome::kOk, 7, 100);
  metrics.BatchStarted(BatchMode::kInfer);
  metrics.BatchEnded(BatchMode::kInfer, BatchOutcome::kFailed, 0, 20);
  metrics.BatchStarted(BatchMode::kInfer);
  metrics.BatchEnded(BatchMode::kInfer, BatchOutcome::kCancelled, 0, 3);
  for (int run = 0; run < 2; ++run) metrics.inference_runs.Add();
  metrics.BatchStarted(BatchMode::kTrain);
  metrics.BatchEnded(BatchMode::kTrain, BatchOutcome::kOk, 1000, 1000);
  metrics.queues[WorkQueue::kInfer].wait.Observe(5);
  metrics.queues[WorkQueue::kTrain].wait.Observe(1000);
  InferenceTimes times;
  times.RunBegan(absl::FromUnixMillis(1234));
  times.RunEnded(3, 10, 1);
  times.RunEnded(3, 20, 2);
  times.RunEnded(8, 40, 4);
  for (int call = 0; call < 4; ++call) times.CallEnded(100, 10);
  const inference::ModelStatistics statistics = StatisticsOf("gpt", metrics, times.now());
  EXPECT_EQ(statistics.last_inference(), 1234u);
  ASSERT_EQ(statistics.batch_stats_size(), 2);
  EXPECT_EQ(statistics.batch_stats(0).batch_size(), 3u);
  EXPECT_EQ(statistics.batch_stats(0).compute_infer().count(), 2u);
  EXPECT_EQ(statistics.batch_stats(0).compute_infer().ns(), 30u);
  EXPECT_EQ(statistics.batch_stats(1).compute_output().ns(), 4u);
  EXPECT_EQ(statistics.inference_stats().compute_infer().count(), 4u);
  EXPECT_EQ(statistics.inference_stats().compute_infer().ns(), 400u);
  EXPECT_EQ(statistics.inference_stats().compute_output().ns(), 40u);
  EXPECT_EQ(statistics.name(), "gpt");
  EXPECT_EQ(statistics.version(), "1");
  EXPECT_EQ(statistics.inference_count(), 7u);
  EXPECT_EQ(statistics.execution_count(), 2u);
  const inference::InferStatistics& counts = statistics.inference_stats();
  EXPECT_EQ(counts.success().count(), 1u);
  EXPECT_EQ(counts.success().ns(), 123u);
  EXPECT_EQ(counts.fail().count(), 1u);
  EXPECT_EQ(counts.queue().count(), 1u);
  EXPECT_EQ(counts.queue().ns(), 5u);
}

TEST(InferenceModels, LowNumbersOfPriorityGoFirstAndTheDefaultIsBehindThem) {
  const auto priority = [](uint64_t level) {
    inference::ModelInferRequest request;
    (*request.mutable_parameters())["priority"].set_uint64_param(level);
    return ReadParameters(request)->priority;
  };
  EXPECT_GT(priority(1), priority(2));
  EXPECT_GT(priority(2), priority(1000));
  EXPECT_GT(priority(1000), priority(0));
  EXPECT_EQ(priority(0), 0);
  EXPECT_EQ(priority(1001), 0);
}

TEST(InferenceModels, SizesOfRunsAreBounded) {
  InferenceTimes times;
  for (int64_t rows = 1; rows <= 1000; ++rows) times.RunEnded(rows, 1, 1);
  times.RunEnded(1, 1, 1);
  EXPECT_EQ(times.now().runs.size(), InferenceTimes::kSizes);
  EXPECT_EQ(times.now().runs.at(1).count, 2);
}

TEST(InferenceModels, TheIndexTellsStateAndReason) {
  using State = PipelineEntry::State;
  const auto index = [](State state, const absl::Status& error = absl::OkStatus()) {
    const auto all = IndexOf({.name = "gpt", .state = state, .error = error});
    EXPECT_EQ(all.size(), 1u);
    const auto& shown = all.front();
    EXPECT_EQ(shown.name(), "gpt");
    EXPECT_EQ(shown.version(), "1");
    return shown.state() + ": " + shown.reason();
  };
  EXPECT_EQ(index(State::kReady), "READY: ");
  EXPECT_EQ(index(State::kCreating), "LOADING: ");
  EXPECT_EQ(index(State::kDraining), "UNLOADING: the daemon is draining");
  EXPECT_EQ(index(State::kDeleting), "UNLOADING: it is being deleted");
  const absl::Status lost = Error(absl::StatusCode::kUnavailable, "RANK_LOST", "rank 2 is lost");
  EXPECT_EQ(index(State::kFailed, lost), "UNAVAILABLE: rank 2 is lost");
  EXPECT_EQ(index(State::kReforming, lost), "UNAVAILABLE: rank 2 is lost");
  EXPECT_EQ(index(State::kUnloading), "UNLOADING: it is being unloaded");
  EXPECT_EQ(index(State::kUnloaded), "UNAVAILABLE: unloaded");
}

}  // namespace
}  // namespace penstock
