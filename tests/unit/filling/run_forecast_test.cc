#include "engine/filling/run_forecast.h"

#include <gtest/gtest.h>

#include "engine/schedule/build.h"

namespace penstock {
namespace {

// 1F1B, two stages, three micro-batches, forward 10, backward 20:
//   lane 0   0F0 0-10   0F1 10-20   0B0 40-60   0F2 60-70   0B1 70-90   0B2 120-140, OPT
//   lane 1   1F0 10-20  1B0 20-40   1F1 40-50   1B1 50-70   1F2 70-80   1B2 80-100, OPT
class RunForecastTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBegin = 5000;

  RunForecastTest() {
    absl::StatusOr<Schedule> lists = BuildSchedule({.kind = "1f1b", .lanes = 2, .micro_batches = 3});
    EXPECT_TRUE(lists.ok()) << lists.status();
    schedule_ = std::make_shared<const Schedule>(*std::move(lists));
    costs_.stages.assign(2, {.forward = 10, .input_gradient = 10, .weight_gradient = 10, .optimizer = 1});
    costs_.optimizer_barrier = true;
    absl::StatusOr<RunForecast> made = MakeForecast(*schedule_, costs_);
    EXPECT_TRUE(made.ok()) << made.status();
    forecast_ = std::make_shared<const RunForecast>(*std::move(made));
    progress_ = std::make_unique<RunProgress>(schedule_, kBegin, [this] {
      ++asked_;
      return forecast_;
    });
  }

  size_t PlaceOf(int lane, const std::string& action) {
    for (size_t i = 0; i < schedule_->lanes[lane].size(); ++i) {
      if (ToString(schedule_->lanes[lane][i]) == action) return i;
    }
    ADD_FAILURE() << action;
    return 0;
  }
  void Begin(int lane, const std::string& action, int64_t at) {
    progress_->Begin(LaneIndex(lane), PlaceOf(lane, action), kBegin + at);
  }
  void End(int lane, int64_t at) { progress_->End(LaneIndex(lane), kBegin + at); }
  int64_t Expected(int lane, int64_t now) { return progress_->ExpectedStart(LaneIndex(lane), kBegin + now) - kBegin; }

  std::shared_ptr<const Schedule> schedule_;
  ScheduleCosts costs_;
  std::shared_ptr<const RunForecast> forecast_;
  std::unique_ptr<RunProgress> progress_;
  int asked_ = 0;
};

TEST_F(RunForecastTest, KnowsTheFillTheGapAndTheDrain) {
  Begin(0, "0F0", 0);
  EXPECT_EQ(Expected(1, 0), 10);
  End(0, 10);
  Begin(0, "0F1", 10);
  Begin(1, "1F0", 10);
  End(0, 20);
  End(1, 20);
  Begin(1, "1B0", 20);
  EXPECT_EQ(Expected(0, 20), 40);
  EXPECT_EQ(progress_->ExpectedWeightsChange(kBegin + 20) - kBegin, 120);
  EXPECT_EQ(asked_, 1);
}

TEST_F(RunForecastTest, MovesWithTheLatenessOfWhoWorks) {
  Begin(0, "0F0", 0);
  End(0, 10);
  Begin(0, "0F1", 10);
  End(0, 20);
  Begin(1, "1F0", 13);
  EXPECT_EQ(Expected(0, 20), 43);
  EXPECT_EQ(Expected(0, 25), 45);  // it has not ended at 20, as forecast: 5 late at the least
  End(1, 30);
  Begin(1, "1B0", 30);
  EXPECT_EQ(Expected(0, 31), 50);
}

TEST_F(RunForecastTest, TheLeastLateLaneCounts) {
  Begin(0, "0F0", 0);
  End(0, 10);
  Begin(1, "1F0", 18);  // 8 late
  Begin(0, "0F1", 12);  // 2 late: what follows from it may still be nearly in time
  EXPECT_EQ(progress_->ExpectedWeightsChange(kBegin + 18) - kBegin, 122);
  End(0, 22);
  EXPECT_EQ(progress_->ExpectedWeightsChange(kBegin + 22) - kBegin, 128);
  EXPECT_EQ(Expected(0, 22), 48);
}

TEST_F(RunForecastTest, WhereNobodyWorksTheNextToBeginBeginsNow) {
  Begin(0, "0F0", 0);
  End(0, 10);
  // 0F1 and 1F0 are next, both at 10; it is 14.
  EXPECT_EQ(Expected(1, 14), 14);
}

TEST_F(RunForecastTest, SaysNeverBehindTheEndAndNowWithoutAForecast) {
  progress_->Leave(LaneIndex(1));
  EXPECT_EQ(progress_->ExpectedStart(LaneIndex(1), kBegin), kNever);
  RunProgress blind(schedule_, kBegin, [] { return nullptr; });
  EXPECT_EQ(blind.ExpectedStart(LaneIndex(0), kBegin + 77), kBegin + 77);
  EXPECT_EQ(blind.ExpectedWeightsChange(kBegin + 77), kNever);
}

TEST_F(RunForecastTest, CountsWhatActionsTook) {
  Begin(0, "0F0", 0);
  End(0, 12);
  Begin(0, "0F1", 20);
  End(0, 28);
  const auto totals = progress_->Totals();
  const RunProgress::Total total = totals.at({0, ActionKind::kForward});
  EXPECT_EQ(total.nanos, 20);
  EXPECT_EQ(total.count, 2);
}

}  // namespace
}  // namespace penstock
