// How the lanes of one process agree on the end of a run and on an optimizer step.

#include "engine/exec/local_coordinator.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

class LocalCoordinatorTest : public ::testing::Test {
 protected:
  LocalCoordinatorTest() {
    run_.OnEnd([this] { ++ends_; });
  }

  static TiedGradients OneTie() { return {std::vector<at::Tensor>(2)}; }

  int wakes_ = 0;
  int ends_ = 0;
  int decisions_ = 0;
  const std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();
  LocalCoordinator run_{2, [this] { ++wakes_; }, cancel_};
};

TEST_F(LocalCoordinatorTest, EndsWithItsLastLane) {
  run_.Leave(false);
  EXPECT_EQ(ends_, 0);
  run_.Leave(false);
  EXPECT_EQ(ends_, 1);
  EXPECT_TRUE(run_.Result().ok());
  EXPECT_FALSE(run_.MustRunAgain());
  EXPECT_EQ(wakes_, 0) << "nobody waits for a lane that has done its part";
}

TEST_F(LocalCoordinatorTest, TheFirstFailureCountsAndEverybodyLooksAgain) {
  EXPECT_FALSE(run_.Stopped());
  run_.Fail(Error(absl::StatusCode::kInternal, "FIRST", "first"));
  run_.Fail(Error(absl::StatusCode::kInternal, "SECOND", "second"));
  EXPECT_TRUE(run_.Stopped());
  EXPECT_EQ(wakes_, 2);
  run_.Leave(true);
  EXPECT_EQ(wakes_, 3) << "who waits for this lane waits for nothing now";
  EXPECT_EQ(ReasonOf(run_.Result()), "FIRST");
}

TEST_F(LocalCoordinatorTest, ACancelStopsItAndIsWhatItCameTo) {
  cancel_->Cancel();
  EXPECT_TRUE(run_.Stopped());
  EXPECT_EQ(ReasonOf(run_.Result()), "WORK_CANCELLED");
  run_.Fail(Error(absl::StatusCode::kInternal, "WORSE", "worse"));
  EXPECT_EQ(ReasonOf(run_.Result()), "WORSE");
}

TEST_F(LocalCoordinatorTest, RunsAgainOnlyIfItGaveWayBeforeItsEnd) {
  run_.GiveWay();
  EXPECT_TRUE(run_.Stopped());
  run_.Leave(false);
  EXPECT_FALSE(run_.MustRunAgain()) << "so far all is done";
  run_.Leave(true);
  EXPECT_TRUE(run_.MustRunAgain());
  EXPECT_TRUE(run_.Result().ok());
  cancel_->Cancel();
  EXPECT_FALSE(run_.MustRunAgain());
}

TEST_F(LocalCoordinatorTest, AStepGoesThroughItsPartsTogether) {
  EXPECT_TRUE(run_.ties().empty());
  run_.OpenStep(2, OneTie(), [this] {
    ++decisions_;
    EXPECT_EQ(run_.Norms().size(), 3);
  });
  EXPECT_FALSE(run_.TiesAreIn());
  run_.EndTies();
  EXPECT_FALSE(run_.TiesAreIn());
  EXPECT_EQ(wakes_, 0);
  run_.EndTies();
  EXPECT_TRUE(run_.TiesAreIn());
  EXPECT_EQ(wakes_, 1);
  run_.PutNorms(1, {at::full({}, 2.0), at::full({}, 3.0)});
  run_.EndNorms();
  EXPECT_EQ(decisions_, 0);
  run_.PutNorms(0, {at::full({}, 1.0)});
  run_.EndNorms();
  EXPECT_EQ(decisions_, 1);
  EXPECT_EQ(run_.Norms().front().item<double>(), 1) << "in model order";
  run_.Decide({.learning_rate = 0.5, .norm = 4, .scale = 1, .applied = true});
  EXPECT_FALSE(run_.expects_grant()) << "the weights may be refused";
  run_.ExpectGrant();
  EXPECT_TRUE(run_.expects_grant());
  EXPECT_FALSE(run_.Granted()) << "inference may still read the weights";
  run_.Grant();
  EXPECT_TRUE(run_.Granted());
  EXPECT_TRUE(run_.gate().HasBeenNotified());
  EXPECT_EQ(run_.decision().learning_rate, 0.5);
  EXPECT_EQ(wakes_, 2);
}

TEST_F(LocalCoordinatorTest, WithoutTiesNobodyWaitsForThem) {
  run_.OpenStep(2, {}, [] {});
  EXPECT_TRUE(run_.TiesAreIn());
}

}  // namespace
}  // namespace penstock
