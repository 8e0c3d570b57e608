// The third way to cut: a list of ranks. It can be planned; only rank 0 can be run (tests/unit/exec/rows_test.cc).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/plan/cut.h"
#include "engine/plan/planner.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

PlanRequest FourLayers(const std::vector<int>& balance, const std::vector<int>& ranks) {
  PlanRequest request;
  for (const char* name : {"a", "b", "c", "d"}) request.layers.push_back({.kind = "relu", .name = name, .options = {}});
  request.devices = {{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}};
  request.schedule = {"1f1b", 4, CheckpointMode::kNever};
  request.cut.balance = balance;
  request.cut.ranks = ranks;
  return request;
}

std::vector<int> RanksOf(const Plan& plan) {
  std::vector<int> ranks;
  for (const StagePlan& stage : plan.stages) ranks.push_back(stage.rank.value());
  return ranks;
}

TEST(RankCut, ABalanceOverRanksIsKeptInThePlan) {
  auto plan = PlanFromProfile(FourLayers({1, 2, 1}, {0, 0, 1}), std::vector<LayerProfile>(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(RanksOf(*plan), ElementsAre(0, 0, 1));
  EXPECT_THAT(plan->stages[1].layers, ElementsAre("b", "c"));
  plan = PlanFromProfile(FourLayers({1, 3}, {}), std::vector<LayerProfile>(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(RanksOf(*plan), ElementsAre(0, 0));
}

TEST(RankCut, TooFewRanksAreRefused) {
  const absl::Status status = GivenCut(FourLayers({1, 2, 1}, {0, 1})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(status)["field"], "spec.cut.ranks");
  EXPECT_EQ(ValuesOf(status)["value"], "[0, 1]");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("too few ranks to hold given partitions (ranks: 2, partitions: 3)"));
}

TEST(RankCut, RanksAreOfOneRowFromZero) {
  for (const std::vector<int>& ranks : std::vector<std::vector<int>>{
           {1, 1, 2}, {0, -1, 0}, {0, 2, 2}, {0, 1, 0}, {-1, 0, 1}, {0, 1, 2, 4}, {2147483647, 0, 0}}) {
    const absl::Status status = GivenCut(FourLayers({1, 2, 1}, ranks)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ranks.front();
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
    EXPECT_EQ(ValuesOf(status)["field"], "spec.cut.ranks");
  }
}

TEST(RankCut, UnusedRanksAreDroppedAndTold) {
  auto plan = PlanFromProfile(FourLayers({2, 2}, {0, 1, 2, 3}), std::vector<LayerProfile>(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(RanksOf(*plan), ElementsAre(0, 1));
  EXPECT_THAT(plan->why, Contains("More ranks than partitions, some ranks unused: [2, 3]."));
  plan = PlanFromProfile(FourLayers({2, 2}, {0, 1}), std::vector<LayerProfile>(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->why, ::testing::Not(Contains(HasSubstr("unused"))));
}

TEST(RankCut, RanksNeedABalance) {
  PlanRequest request = FourLayers({}, {0, 1});
  for (int stages : {0, 2}) {
    request.cut.stages = stages;
    const absl::Status status = GivenCut(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
    EXPECT_EQ(ValuesOf(status)["field"], "spec.cut.balance");
    EXPECT_THAT(std::string(status.message()), HasSubstr("balance is required"));
  }
}

TEST(RankCut, TheBalanceIsCheckedFirst) {
  const absl::Status status = GivenCut(FourLayers({1, 2}, {0})).status();
  EXPECT_EQ(ValuesOf(status)["field"], "spec.cut.balance");
  EXPECT_THAT(std::string(status.message()), HasSubstr("(module: 4, sum of balance: 3)"));
}

}  // namespace
}  // namespace penstock
