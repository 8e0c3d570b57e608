// Plans that weigh the links between ranks.

#include "engine/plan/stage_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/plan/cut.h"
#include "engine/plan/planner.h"
#include "engine/plan/search.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kMegabyte = 1'000'000;

// F = 1 ms, B = 2 ms, and a megabyte to the next one.
std::vector<LayerProfile> EqualLayers(int count) {
  LayerProfile layer;
  layer.forward_seconds = 0.001;
  layer.backward_seconds = 0.002;
  layer.output_bytes = kMegabyte;
  return std::vector<LayerProfile>(count, layer);
}

// One device on each rank.
PlanRequest OverRanks(int layers, int ranks, const std::vector<Link>& links) {
  PlanRequest request;
  for (int i = 0; i < layers; ++i) request.layers.push_back({"linear", "layer" + std::to_string(i), {}});
  for (int rank = 0; rank < ranks; ++rank) {
    request.devices.push_back({.name = NameOnRank(Rank(rank), "cpu:0"), .cores = {0}, .rank = Rank(rank)});
  }
  request.schedule = {"gpipe", 2, CheckpointMode::kNever};
  request.links = links;
  return request;
}

Link Measured(int one, int other, double latency_seconds, double bytes_per_second) {
  return {.one = Rank(one),
          .other = Rank(other),
          .measured = true,
          .latency_seconds = latency_seconds,
          .bytes_per_second = bytes_per_second};
}

std::vector<int> BalanceOf(const Plan& plan) {
  std::vector<int> balance;
  for (const StagePlan& stage : plan.stages) balance.push_back(static_cast<int>(stage.layers.size()));
  return balance;
}

// By hand, in ms: a stage forward takes 2, backward 4; a message 3 of the link and 1 more. Forwards end at 2 and 4, are
// there at 6 and 9, backwards of the last stage end at 15 and 19, gradients are there at 19 and 23: the step ends at 27.
TEST(StageLinks, AMessageTakesItsTimeInThePredictedStep) {
  const PlanRequest request = OverRanks(4, 2, {Measured(0, 1, 0.001, kMegabyte / 0.003)});
  const auto plan = PlanFromProfile(request, EqualLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(BalanceOf(*plan), ElementsAre(2, 2));
  EXPECT_EQ(plan->stages[1].rank, Rank(1));
  EXPECT_NEAR(plan->makespan_seconds, 0.027, 1e-9);
  EXPECT_NEAR(plan->predicted_bubble, 1 - 24.0 / 54, 1e-9);
  EXPECT_THAT(plan->links, ElementsAre(request.links[0]));
  ASSERT_EQ(plan->transfers.size(), 1u);
  EXPECT_EQ(plan->transfers[0].from, 0);
  EXPECT_EQ(plan->transfers[0].to, 1);
  EXPECT_EQ(plan->transfers[0].bytes, kMegabyte);
  EXPECT_DOUBLE_EQ(plan->transfers[0].latency_seconds, 0.001);
  EXPECT_DOUBLE_EQ(plan->transfers[0].transfer_seconds, 0.003);
  EXPECT_THAT(plan->why, Contains("The link between ranks 0 and 1 was measured: 1.000 ms and 333.3 MB/s."));
  EXPECT_THAT(plan->why, Contains("Layers were measured on devices of rank 0, in the stead of those of rank 1."));
}

TEST(StageLinks, WithoutLinksNothingChanges) {
  const auto unknown = PlanFromProfile(OverRanks(4, 2, {}), EqualLayers(4));
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_NEAR(unknown->makespan_seconds, 0.018, 1e-9);  // (m + P - 1)(F + B)
  EXPECT_THAT(unknown->transfers, IsEmpty());
  EXPECT_THAT(unknown->links, IsEmpty());
  // Where all stages stand on one rank, links are of no use.
  PlanRequest here = OverRanks(4, 2, {Measured(0, 1, 1, 1)});
  here.devices[1] = {.name = "cpu:1", .cores = {0}};
  const auto alone = PlanFromProfile(here, EqualLayers(4));
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->makespan_seconds, unknown->makespan_seconds);
  EXPECT_THAT(alone->transfers, IsEmpty());
  EXPECT_THAT(alone->why, Not(Contains(HasSubstr("link"))));
  EXPECT_THAT(alone->why, Not(Contains(HasSubstr("rank"))));
}

TEST(StageLinks, ALinkThatCouldNotBeMeasuredTakesNoTimeAndThePlanSaysSo) {
  const PlanRequest request =
      OverRanks(4, 3, {{.one = Rank(0), .other = Rank(1), .problem = "no echo from rank 1 in time"}});
  const auto plan = PlanFromProfile(request, EqualLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->makespan_seconds, PlanFromProfile(OverRanks(4, 3, {}), EqualLayers(4))->makespan_seconds);
  ASSERT_EQ(plan->links.size(), 2u);
  EXPECT_FALSE(plan->links[0].measured);
  EXPECT_THAT(plan->why, Contains("The link between ranks 0 and 1 could not be measured (no echo from rank 1 in "
                                  "time); it counts as one that takes no time."));
  EXPECT_THAT(plan->why, Contains(HasSubstr("ranks 1 and 2 could not be measured (nothing is known of it)")));
  EXPECT_THAT(plan->why, Contains(HasSubstr("those of ranks 1, 2.")));
}

// Behind the third layer only a thousand bytes are left.
std::vector<LayerProfile> NarrowBehindTheThird() {
  std::vector<LayerProfile> layers = EqualLayers(4);
  layers[2].output_bytes = 1000;
  return layers;
}

TEST(StageLinks, ASlowLinkMovesTheCut) {
  const auto cut = [](double bytes_per_second) {
    PlanRequest request = OverRanks(4, 2, {Measured(0, 1, 0.0001, bytes_per_second)});
    request.schedule.micro_batches = 8;
    const auto plan = PlanFromProfile(request, NarrowBehindTheThird());
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? BalanceOf(*plan) : std::vector<int>();
  };
  EXPECT_THAT(cut(1e10), ElementsAre(2, 2));
  EXPECT_THAT(cut(5e8), ElementsAre(2, 2));  // 2 ms are hidden behind 6: an uneven cut would be slower
  EXPECT_THAT(cut(5e7), ElementsAre(3, 1));  // 20 ms are not
}

TEST(StageLinks, ASearchMovesTheCutToo) {
  const auto best = [](double bytes_per_second) {
    PlanRequest request = OverRanks(4, 2, {Measured(0, 1, 0.0001, bytes_per_second)});
    request.schedule.micro_batches = 8;
    request.limits.open = {.kind = true};
    request.limits.kinds = {"gpipe", "1f1b"};
    const auto search = SearchPlans(request, SizeProfile(NarrowBehindTheThird()), {});
    EXPECT_TRUE(search.ok()) << search.status();
    return search->candidates.front();
  };
  const PlanCandidate fast = best(1e12);
  EXPECT_THAT(fast.cut.balance, ElementsAre(2, 2));
  EXPECT_NEAR(fast.makespan_seconds, 9 * 0.006, 0.001);
  const PlanCandidate slow = best(5e7);
  EXPECT_THAT(slow.cut.balance, ElementsAre(3, 1));
  EXPECT_GT(slow.makespan_seconds, 8 * 0.009);
  EXPECT_LT(slow.makespan_seconds, 8 * 0.020);
}

// Links are pairs: the way from 0 to 1 says nothing of that from 1 to 2.
TEST(StageLinks, EachPairOfRanksHasItsOwnLink) {
  std::vector<LayerProfile> layers = EqualLayers(6);
  PlanRequest request = OverRanks(6, 3, {Measured(0, 1, 0, 1e12), Measured(1, 2, 0.5, 1e6), Measured(0, 2, 7, 1)});
  request.cut.balance = {2, 2, 2};
  const auto plan = PlanFromProfile(request, layers);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->transfers.size(), 2u);
  EXPECT_DOUBLE_EQ(plan->transfers[0].latency_seconds, 0);
  EXPECT_DOUBLE_EQ(plan->transfers[1].latency_seconds, 0.5);
  EXPECT_DOUBLE_EQ(plan->transfers[1].transfer_seconds, 1);
  EXPECT_THAT(plan->links, ElementsAre(request.links[0], request.links[1]));
}

TEST(StageLinks, SkipsCrossLinksToo) {
  const SkipName far = {"", "x"};
  PlanRequest request = OverRanks(3, 3, {Measured(0, 1, 0, 1e9), Measured(0, 2, 0, 1e9), Measured(1, 2, 0, 1e9)});
  request.cut.balance = {1, 1, 1};
  request.skips = {{{far}, {}}, {}, {{}, {far}}};
  std::vector<LayerProfile> layers = EqualLayers(3);
  layers[0].skip_bytes = {{far, 5 * kMegabyte}};
  const auto plan = PlanFromProfile(request, layers);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->transfers.size(), 3u);
  EXPECT_EQ(plan->transfers[1].from, 0);
  EXPECT_EQ(plan->transfers[1].to, 2);
  EXPECT_EQ(plan->transfers[1].bytes, 5 * kMegabyte);
  EXPECT_EQ(CostsOf(*plan).edges.at({0, 2}).transfer, 5'000'000);  // nanoseconds
  // To the next stage it goes beside the activation.
  request.skips = {{{far}, {}}, {{}, {far}}, {}};
  EXPECT_EQ(PlanFromProfile(request, layers)->transfers.at(0).bytes, 6 * kMegabyte);
}

TEST(StageLinks, RanksThatOnlyTheCutNamesHaveLinksToo) {
  PlanRequest request = OverRanks(4, 1, {Measured(0, 1, 0.001, 1e9)});
  request.devices = {{.name = "cpu:0", .cores = {0}}, {.name = "cpu:1", .cores = {0}}};
  request.cut.balance = {2, 2};
  request.cut.ranks = {0, 1};
  const auto plan = PlanFromProfile(request, EqualLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->transfers.size(), 1u);
}

}  // namespace
}  // namespace penstock
