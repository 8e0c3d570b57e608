#include "engine/observe/bubble.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

StateTimes Times(std::initializer_list<std::pair<StageState, int64_t>> cells) {
  StateTimes times;
  for (const auto& [state, seconds] : cells) times.nanos[static_cast<size_t>(state)] += seconds * kSecond;
  return times;
}

// The numbers of the golden test of the recording rules.
TEST(BubbleTest, IsTheShareOfAStepThatIsNotWork) {
  const StateTimes after = Times({{StageState::kForward, 3},
                                  {StageState::kBackward, 6},
                                  {StageState::kWaitGradient, 2},
                                  {StageState::kBlocked, 1},
                                  {StageState::kNoWork, 3}});
  const ClassTimes times = TimesSinceStart(after);
  EXPECT_DOUBLE_EQ(times.MeasuredBubble(), 0.25);
  EXPECT_EQ(times.InStep(), 12 * kSecond);
  EXPECT_EQ(times.Total(), 15 * kSecond);
}

TEST(BubbleTest, FilledTimeIsNotWorkButFillsTheBubble) {
  const ClassTimes times =
      TimesSinceStart(Times({{StageState::kForward, 6}, {StageState::kFilled, 3}, {StageState::kWaitActivation, 1}}));
  EXPECT_DOUBLE_EQ(times.MeasuredBubble(), 0.4);
  EXPECT_DOUBLE_EQ(times.ResidualBubble(), 0.1);
  EXPECT_DOUBLE_EQ(times.FillRatio(), 0.75);
}

TEST(BubbleTest, TimeWithoutAStepIsNoBubble) {
  const ClassTimes times = TimesSinceStart(Times({{StageState::kNoWork, 9}, {StageState::kInfer, 5}}));
  EXPECT_EQ(times.MeasuredBubble(), 0);
  EXPECT_EQ(times.ResidualBubble(), 0);
  EXPECT_EQ(times.FillRatio(), 0);
}

TEST(BubbleTest, CountsOnlyWhatPassedBetweenTheSnapshots) {
  testing::FakeClock clock;
  StateClock lane(&clock);
  lane.Enter(StageState::kFill);
  clock.AdvanceNanos(100);
  const StateTimes before = lane.Snapshot();
  lane.Enter(StageState::kForward);
  clock.AdvanceNanos(30);
  lane.Enter(StageState::kDrain);
  clock.AdvanceNanos(10);
  const ClassTimes times = TimesBetween(before, lane.Snapshot());
  EXPECT_EQ(times.work, 30);
  EXPECT_EQ(times.idle_in_step, 10);
  EXPECT_DOUBLE_EQ(times.MeasuredBubble(), 0.25);
}

TEST(BubbleTest, OfSeveralLanesWeighsEachByItsTime) {
  const std::vector<StateTimes> before(2);
  const std::vector<StateTimes> after = {Times({{StageState::kForward, 8}}),
                                         Times({{StageState::kForward, 1}, {StageState::kFill, 1}})};
  EXPECT_DOUBLE_EQ(TimesBetween(before, after).MeasuredBubble(), 0.1);
}

}  // namespace
}  // namespace penstock
