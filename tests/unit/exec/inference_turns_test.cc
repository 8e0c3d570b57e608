#include "engine/exec/inference_turns.h"

#include <gtest/gtest.h>

#include "engine/exec/run_forecast.h"
#include "engine/exec/step_rhythm.h"

namespace penstock {
namespace {

class InferenceTurnsTest : public ::testing::Test {
 protected:
  InferenceTurnsTest() {
    one_.sequence = 1;
    two_.sequence = 2;
    one_.accepted_nanos = two_.accepted_nanos = 500;
  }
  InferenceTicket one_;
  InferenceTicket two_;
};

TEST_F(InferenceTurnsTest, AreForThoseWhoWaitedOneAtATime) {
  InferenceTurns turns(0.1, 1000);
  EXPECT_EQ(turns.ClaimableAt(one_), 1500);
  EXPECT_FALSE(turns.Claim(one_, 1499));
  EXPECT_TRUE(turns.Claim(one_, 1500));
  EXPECT_TRUE(turns.Claim(one_, 1501));
  EXPECT_FALSE(turns.Claim(two_, 1501));
  turns.Release(two_, 1502);  // not the holder
  EXPECT_FALSE(turns.Claim(two_, 1503));
  turns.Release(one_, 1600);
  EXPECT_TRUE(turns.Claim(two_, 1600));  // nothing was charged
}

TEST_F(InferenceTurnsTest, TakeNoMoreThanTheirShare) {
  InferenceTurns turns(0.1, 1000);
  ASSERT_TRUE(turns.Claim(one_, 2000));
  turns.Charge(30);
  turns.Charge(20);
  turns.Release(one_, 2100);
  EXPECT_EQ(turns.ClaimableAt(two_), 2600);
  EXPECT_FALSE(turns.Claim(two_, 2599));
  EXPECT_TRUE(turns.Claim(two_, 2600));
}

TEST_F(InferenceTurnsTest, AShareOfNothingNeverComes) {
  InferenceTurns turns(0, 1000);
  EXPECT_FALSE(turns.Claim(one_, 1'000'000));
  EXPECT_EQ(turns.ClaimableAt(one_), kNever);
}

TEST(StepRhythm, ExpectsTheNextRunAfterTheUsualPauseAndGivesUpLater) {
  StepRhythm rhythm;
  constexpr int64_t kPause = 1'000'000;
  EXPECT_EQ(rhythm.ExpectedStart(0), kNever);
  int64_t now = 0;
  for (int i = 0; i < 3; ++i) {
    rhythm.Began(now);
    EXPECT_EQ(rhythm.ExpectedStart(now), kNever);
    EXPECT_EQ(rhythm.GivenUpAt(), kNever);
    now += 10 * kPause;
    rhythm.Ended(now);
    if (i == 0) {
      EXPECT_EQ(rhythm.ExpectedStart(now), kNever);  // one run is no rhythm
    }
    now += kPause;
  }
  const int64_t ended = now - kPause;
  EXPECT_EQ(rhythm.ExpectedStart(ended), ended + kPause);
  EXPECT_EQ(rhythm.ExpectedStart(ended + kPause + 7), ended + kPause + 7);
  EXPECT_EQ(rhythm.GivenUpAt(), ended + kPause * 3 / 2);
  EXPECT_EQ(rhythm.ExpectedStart(ended + kPause * 3 / 2), kNever);
}

TEST(StepRhythm, WaitsForNoTrainerLongerThanItsMostPatience) {
  StepRhythm rhythm;
  int64_t now = 0;
  for (int64_t pause : {int64_t{1'000'000}, int64_t{60'000'000'000}}) {
    rhythm.Began(now);
    rhythm.Ended(now);
    now += pause;
  }
  rhythm.Began(now);
  rhythm.Ended(now);
  const int64_t expected = rhythm.ExpectedStart(now);
  EXPECT_GT(expected, now);
  EXPECT_LE(rhythm.GivenUpAt() - now, 60'000'000'000);
}

}  // namespace
}  // namespace penstock
