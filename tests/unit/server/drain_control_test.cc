#include "server/drain_control.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/base/thread.h"

namespace penstock {
namespace {

TEST(DrainSignal, HurryEndsEveryWait) {
  DrainSignal signal;
  Thread operators("ps-test", [&] { signal.Hurry(); });
  signal.AwaitTime(absl::InfiniteDuration());
  signal.AwaitWork(absl::InfiniteDuration());
  EXPECT_TRUE(signal.hurried());
  EXPECT_FALSE(signal.work_ended());
}

TEST(DrainSignal, TheEndOfWorkEndsTheWaitForIt) {
  DrainSignal signal;
  Thread work("ps-test", [&] { signal.WorkEnded(); });
  signal.AwaitWork(absl::InfiniteDuration());
  EXPECT_TRUE(signal.work_ended());
  EXPECT_FALSE(signal.hurried());
}

class DrainControlTest : public ::testing::Test {
 protected:
  int woken_ = 0;
  DrainControl drains_{[this] { ++woken_; }};
};

TEST_F(DrainControlTest, ASecondCallJoinsTheFirst) {
  EXPECT_FALSE(drains_.asked().has_value());
  ASSERT_TRUE(drains_.Ask({}).ok());
  const auto first = drains_.asked();
  ASSERT_TRUE(drains_.Ask({.for_upgrade = true}).ok());
  EXPECT_EQ(drains_.asked()->signal, first->signal);
  EXPECT_TRUE(first->signal->view().for_upgrade);
  EXPECT_EQ(woken_, 2);
}

TEST_F(DrainControlTest, AnAbortedOneIsForgottenAndAnotherMayCome) {
  EXPECT_TRUE(drains_.Abort().ok()) << "there is nothing to abort";
  ASSERT_TRUE(drains_.Ask({}).ok());
  const auto first = drains_.asked()->signal;
  ASSERT_TRUE(drains_.Abort().ok());
  EXPECT_EQ(ReasonOf(drains_.Ask({})), "DRAINING") << "the abort is under way";
  drains_.Forget();
  EXPECT_FALSE(drains_.asked().has_value());
  ASSERT_TRUE(drains_.Ask({}).ok());
  EXPECT_NE(drains_.asked()->signal, first);
}

TEST_F(DrainControlTest, ASignalMakesItFinal) {
  ASSERT_TRUE(drains_.Ask({}).ok());
  ASSERT_TRUE(drains_.Ask({.final = true}).ok());
  EXPECT_EQ(ReasonOf(drains_.Abort()), "DRAIN_FINAL");
  EXPECT_TRUE(drains_.asked()->signal->view().final);
}

TEST_F(DrainControlTest, JournalsAreNotEmptiedOnceTheSavesHaveBegun) {
  ASSERT_TRUE(drains_.Ask({}).ok());
  drains_.asked()->signal->Enter(DrainPhase::kSave);
  EXPECT_EQ(ReasonOf(drains_.Ask({.for_upgrade = true})), "DRAIN_FINAL");
  EXPECT_TRUE(drains_.Ask({}).ok());
}

}  // namespace
}  // namespace penstock
