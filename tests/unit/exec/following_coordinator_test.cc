#include "engine/exec/following_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace penstock {
namespace {

// Of a rank with two lanes, whose others may wait for what the one that leaves would have made.
TEST(FollowingCoordinator, ALaneThatLeavesAStoppedRunWakesTheOthers) {
  int woken = 0;
  std::vector<bool> left;
  FollowingCoordinator coordinator(2, {0, 1}, {}, nullptr,
                                   {.wake = [&] { ++woken; },
                                    .failed = [](const absl::Status&) {},
                                    .has_ties = [](const TiedGradients&) {},
                                    .has_norms = [](const std::vector<NormsOfStage>&) {},
                                    .left = [&](bool before_the_end) { left.push_back(before_the_end); }});
  coordinator.Stop();
  EXPECT_EQ(woken, 1);
  coordinator.Leave(/*before_the_end=*/true);
  EXPECT_EQ(woken, 2);
  EXPECT_TRUE(left.empty());
  coordinator.Leave(/*before_the_end=*/false);
  EXPECT_THAT(left, ::testing::ElementsAre(true));
}

}  // namespace
}  // namespace penstock
