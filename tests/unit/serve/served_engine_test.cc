// What callers get is what the engine gives to one who calls it alone.

#include "tests/unit/serve/served_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace penstock::testing {
namespace {

class ServedEngineTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  TemporaryFolder other_folder_;
  ServedEngine served_{folder_.path()};
};

TEST_F(ServedEngineTest, StepsAreThoseOfThePipelineAloneWithTheRateAndTheClipOfEach) {
  const std::unique_ptr<Pipeline> alone = served_.Alone();
  for (const StepRequest& request : {StepRequest{}, StepRequest{.learning_rate = 0.1}, StepRequest{.clip_norm = 1e-3},
                                     StepRequest{.learning_rate = 0.5, .clip_norm = 0.0}}) {
    ASSERT_TRUE(served_.TrainStep(request).ok());
    ASSERT_TRUE(alone->TrainStep(served_.AloneBatch(), request).ok());
    EXPECT_TRUE(Same(served_.Read().value(), alone->ExportState(true).value()));
  }
}

TEST_F(ServedEngineTest, AStepThatRunsCannotBeCancelledAndOneThatWaitsLeavesNoTrace) {
  const std::unique_ptr<Pipeline> alone = served_.Alone();
  absl::Notification in_its_midst;
  absl::Notification go;
  served_.before_action = [&](const Action& action) {
    if (ToString(action) != "1B0" || in_its_midst.HasBeenNotified()) return;
    in_its_midst.Notify();
    go.WaitForNotification();
  };
  const absl::StatusOr<Accepted> runs = served_.StartStep({.learning_rate = 0.1});
  const absl::StatusOr<Accepted> waits = served_.StartStep({.learning_rate = 0.2});
  const absl::StatusOr<Accepted> last = served_.StartStep({.learning_rate = 0.3});
  ASSERT_TRUE(runs.ok() && waits.ok() && last.ok());
  in_its_midst.WaitForNotification();
  EXPECT_TRUE(served_.Cancel(*runs->outcome).value() == CancelEffect::kNotCancellable);
  EXPECT_TRUE(served_.Cancel(*waits->outcome).value() == CancelEffect::kCancelled);
  go.Notify();
  EXPECT_TRUE(served_.Settled(runs, &Accepted::outcome).ok());
  EXPECT_EQ(ReasonOf(served_.Settled(waits, &Accepted::outcome)), "WORK_CANCELLED");
  EXPECT_TRUE(served_.Settled(last, &Accepted::outcome).ok());
  for (const double rate : {0.1, 0.3})
    ASSERT_TRUE(alone->TrainStep(served_.AloneBatch(), {.learning_rate = rate}).ok());
  EXPECT_TRUE(Same(served_.Read().value(), alone->ExportState(true).value()));
}

TEST_F(ServedEngineTest, InferenceBesideTrainingSeesWholeSteps) {
  constexpr int kSteps = 40;  // a gate that lets inference into a step is seen in one step of ten
  const std::unique_ptr<Pipeline> alone = served_.Alone();
  std::vector<at::Tensor> by_step = {served_.AloneInfer(*alone)};
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_TRUE(alone->TrainStep(served_.AloneBatch(), {}).ok());
    by_step.push_back(served_.AloneInfer(*alone));
    ASSERT_FALSE(at::equal(by_step[i], by_step[i + 1]));
  }
  std::vector<Accepted> steps;
  std::vector<Accepted> inferences;
  for (int i = 0; i < kSteps; ++i) {
    steps.push_back(served_.StartStep().value());
    for (int k = 0; k < 4; ++k) inferences.push_back(served_.StartInfer().value());
  }
  for (const Accepted& step : steps) EXPECT_TRUE(served_.Settled(step, &Accepted::outcome).ok());
  for (const Accepted& inference : inferences) {
    ASSERT_TRUE(served_.Settled(inference, &Accepted::outputs).ok());
    const at::Tensor output = served_.OutputOf(inference);
    EXPECT_TRUE(
        std::any_of(by_step.begin(), by_step.end(), [&](const at::Tensor& one) { return at::equal(one, output); }))
        << "of no step, or of a part of one: " << output;
  }
  ASSERT_TRUE(served_.Infer().ok());
  const Accepted last = served_.StartInfer().value();
  ASSERT_TRUE(served_.Settled(last, &Accepted::outputs).ok());
  EXPECT_TRUE(at::equal(served_.OutputOf(last), by_step.back()));
}

TEST_F(ServedEngineTest, StateThatMovesInMidRunGoesOnAsIfItHadStayed) {
  ServedEngine other(other_folder_.path());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(served_.TrainStep().ok());
  ASSERT_TRUE(other.TrainStep({.learning_rate = 0.5}).ok());
  ASSERT_TRUE(other.Write(served_.Read().value(), 3).ok());
  for (ServedEngine* each : {&served_, &other}) {
    ASSERT_TRUE(each->Contribute().ok());
    ASSERT_TRUE(each->OptimizerStep().ok());
    ASSERT_TRUE(each->TrainStep().ok());
  }
  EXPECT_TRUE(Same(served_.Read().value(), other.Read().value()));
}

}  // namespace
}  // namespace penstock::testing
