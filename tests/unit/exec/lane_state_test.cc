#include "engine/exec/lane_state.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

class ManualClock : public Clock {
 public:
  int64_t NowNanos() override { return now; }
  absl::Time WallNow() override { return absl::FromUnixNanos(now); }
  bool AwaitUntil(absl::Mutex*, const absl::Condition& condition, int64_t) override { return condition.Eval(); }
  int64_t now = 1000;
};

class LaneStateTest : public ::testing::Test {
 protected:
  StageState Now() { return states_.state(); }
  int64_t In(StageState state) { return states_.Snapshot(clock_.now)[state]; }

  ManualClock clock_;
  StateClock states_{&clock_};
  LaneState lane_{&states_, &clock_};
};

const MessageKey kKey{.run = 1, .stage = 1, .micro_batch = 0};

TEST_F(LaneStateTest, SplitsAWaitWhereTheInputArrives) {
  lane_.SetIdle(StageState::kNoWork);
  lane_.OpenStep();
  lane_.WaitInStep(StageState::kFill, kKey);
  clock_.now += 50;
  lane_.Arrived(kKey, /*device_busy=*/true);
  clock_.now += 7;
  lane_.DeviceTaken(false);
  clock_.now += 3;
  lane_.BeginAction(StageState::kForward);
  clock_.now += 100;
  lane_.EndAction();
  lane_.CloseStep();
  EXPECT_EQ(In(StageState::kFill), 50);
  EXPECT_EQ(In(StageState::kWaitDevice), 7);
  EXPECT_EQ(In(StageState::kHost), 3);
  EXPECT_EQ(In(StageState::kForward), 100);
  EXPECT_EQ(Now(), StageState::kNoWork);
}

TEST_F(LaneStateTest, IgnoresAMessageItDoesNotWaitFor) {
  lane_.OpenStep();
  lane_.WaitInStep(StageState::kWaitGradient, kKey);
  MessageKey other = kKey;
  other.micro_batch = 1;
  lane_.Arrived(other, false);
  EXPECT_EQ(Now(), StageState::kWaitGradient);
}

TEST_F(LaneStateTest, CountsInferenceInAStepAsFillingAndKeepsTheReasonOfTheGap) {
  lane_.OpenStep();
  lane_.WaitInStep(StageState::kWaitGradient, kKey);
  lane_.OpenInference();
  EXPECT_EQ(Now(), StageState::kWaitGradient);
  lane_.BeginAction(StageState::kInfer);
  EXPECT_EQ(Now(), StageState::kFilled);
  lane_.EndAction();
  EXPECT_EQ(Now(), StageState::kWaitGradient);
  lane_.CloseStep();
  EXPECT_EQ(Now(), StageState::kSetup);  // first match: setup until somebody says otherwise
  lane_.SetIdle(StageState::kNoWork);
  EXPECT_EQ(Now(), StageState::kInferWait);
  lane_.BeginAction(StageState::kInfer);
  EXPECT_EQ(Now(), StageState::kInfer);
  lane_.EndAction();
  lane_.CloseInference();
  EXPECT_EQ(Now(), StageState::kNoWork);
}

TEST_F(LaneStateTest, LeavesOtherReasonsAloneWhenTheDeviceIsTaken) {
  lane_.OpenStep();
  lane_.WaitInStep(StageState::kWaitActivation, kKey);
  lane_.DeviceTaken(true);
  EXPECT_EQ(Now(), StageState::kWaitActivation);
  lane_.DeviceTaken(false);
  EXPECT_EQ(Now(), StageState::kWaitActivation);
}

}  // namespace
}  // namespace penstock
