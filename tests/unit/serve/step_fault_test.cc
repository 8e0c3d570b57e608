// What callers get of a step that failed on a stage.

#include <gtest/gtest.h>

#include "tests/unit/serve/served_engine.h"

namespace penstock::testing {
namespace {

constexpr char kBroken[] = "PIPELINE_BROKEN";

// In the last part of the step, when every weight has changed, on each stage.
class ServedStepFault : public ::testing::TestWithParam<int> {
 protected:
  TemporaryFolder folder_;
  TemporaryFolder other_folder_;
};

TEST_P(ServedStepFault, WithUndoCallersSeeTheStateBefore) {
  ServedEngine served(folder_.path(), /*undo=*/true);
  ServedEngine sound(other_folder_.path(), /*undo=*/true);
  for (ServedEngine* each : {&served, &sound}) {
    ASSERT_TRUE(each->TrainStep().ok());
    ASSERT_TRUE(each->Contribute().ok());
  }
  const NamedTensors before = served.Read().value();
  served.fault = {FaultPoint::kUpdated, GetParam()};
  const absl::Status status = served.OptimizerStep();
  EXPECT_EQ(ReasonOf(status), "STEP_ROLLED_BACK") << status;
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  served.fault.reset();
  EXPECT_TRUE(served.hosted->statistics().accumulating);
  EXPECT_TRUE(Same(served.Read().value(), before));
  EXPECT_TRUE(served.Infer().ok());
  EXPECT_TRUE(served.Save("before").ok());
  ASSERT_TRUE(served.OptimizerStep().ok());
  ASSERT_TRUE(sound.OptimizerStep().ok());
  EXPECT_TRUE(Same(served.Read().value(), sound.Read().value()));
  ASSERT_TRUE(served.Restore("before").ok());
  EXPECT_TRUE(Same(served.Read().value(), before));
}

TEST_P(ServedStepFault, WithoutUndoNothingIsServedOrSavedUntilItIsMended) {
  ServedEngine served(folder_.path(), /*undo=*/false);
  ServedEngine sound(other_folder_.path(), /*undo=*/true);
  for (ServedEngine* each : {&served, &sound}) ASSERT_TRUE(each->TrainStep().ok());
  const NamedTensors before = served.Read().value();
  ASSERT_TRUE(served.Save("good").ok());
  ASSERT_TRUE(sound.TrainStep().ok());
  for (const bool by_restore : {true, false}) {
    served.fault = {FaultPoint::kUpdated, GetParam()};
    EXPECT_EQ(ReasonOf(served.TrainStep()), kBroken);
    served.fault.reset();
    EXPECT_EQ(ReasonOf(served.Infer()), kBroken);
    EXPECT_EQ(ReasonOf(served.Forward()), kBroken);
    EXPECT_EQ(ReasonOf(served.Contribute()), kBroken);
    EXPECT_EQ(ReasonOf(served.TrainStep()), kBroken);
    EXPECT_EQ(ReasonOf(served.Read().status()), kBroken);
    EXPECT_EQ(ReasonOf(served.Save("bad")), kBroken);
    EXPECT_EQ(ReasonOf(served.Write({before[0]}, 1)), kBroken) << "the rest would stay as it is";
    EXPECT_EQ(served.hosted->ListCheckpoints().size(), 1);
    ASSERT_TRUE(by_restore ? served.Restore("good").ok() : served.Write(before, 1).ok());
    EXPECT_TRUE(Same(served.Read().value(), before));
    ASSERT_TRUE(served.TrainStep().ok());
    EXPECT_TRUE(Same(served.Read().value(), sound.Read().value()));
    EXPECT_TRUE(served.Infer().ok());
  }
  served.fault = {FaultPoint::kUpdated, GetParam()};
  EXPECT_EQ(ReasonOf(served.TrainStep()), kBroken);
  EXPECT_EQ(ReasonOf(served.SaveLast().status()), kBroken);
  EXPECT_EQ(served.hosted->ListCheckpoints().size(), 1);
}

INSTANTIATE_TEST_SUITE_P(OnEachStage, ServedStepFault, ::testing::Values(0, 1));

}  // namespace
}  // namespace penstock::testing
