#include "engine/plan/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "engine/base/error.h"

namespace penstock {
namespace {

double Bottleneck(const std::vector<double>& costs, const std::vector<int>& balance) {
  double worst = 0;
  size_t i = 0;
  for (int count : balance) {
    double sum = 0;
    for (int k = 0; k < count; ++k) sum += costs[i++];
    worst = std::max(worst, sum);
  }
  return worst;
}

// Tries every cut.
double BestByTrying(const std::vector<double>& costs, int stages) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> balance;
  std::function<void(int, int)> extend = [&](int left, int parts) {
    if (parts == 1) {
      balance.push_back(left);
      best = std::min(best, Bottleneck(costs, balance));
      balance.pop_back();
      return;
    }
    for (int take = 1; take <= left - parts + 1; ++take) {
      balance.push_back(take);
      extend(left - take, parts - 1);
      balance.pop_back();
    }
  };
  extend(static_cast<int>(costs.size()), stages);
  return best;
}

TEST(Partition, EqualsTheBestOfAllCuts) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int layers = 1 + static_cast<int>(random() % 10);
    const int stages = 1 + static_cast<int>(random() % layers);
    std::vector<double> costs;
    for (int i = 0; i < layers; ++i) costs.push_back(static_cast<double>(random() % 50));
    auto balance = PartitionExactly({costs, std::vector<int64_t>(layers, 1)}, stages);
    ASSERT_TRUE(balance.ok());
    ASSERT_EQ(std::accumulate(balance->begin(), balance->end(), 0), layers);
    ASSERT_TRUE(std::all_of(balance->begin(), balance->end(), [](int n) { return n > 0; }));
    EXPECT_EQ(Bottleneck(costs, *balance), BestByTrying(costs, stages)) << "round " << round;
  }
}

TEST(Partition, BeatsTheAncestorsOnTheirDefects) {
  EXPECT_EQ(Bottleneck({10, 1, 1, 1, 1, 1}, *PartitionExactly({{10, 1, 1, 1, 1, 1}, std::vector<int64_t>(6, 0)}, 2)),
            10);
  EXPECT_EQ(Bottleneck({0, 0, 1, 1}, *PartitionExactly({{0, 0, 1, 1}, std::vector<int64_t>(4, 0)}, 3)), 1);
}

TEST(Partition, BreaksTiesByBytesThenByTheEarliestCut) {
  EXPECT_EQ(*PartitionExactly({{1, 0, 0, 1}, {9, 1, 9, 9}}, 2), (std::vector<int>{2, 2}));
  EXPECT_EQ(*PartitionExactly({{1, 0, 0, 1}, {5, 5, 5, 5}}, 2), (std::vector<int>{1, 3}));
}

TEST(Partition, RefusesMoreStagesThanLayers) {
  for (int stages : {0, -1, 3}) {
    auto refused = PartitionExactly({{1, 2}, {0, 0}}, stages);
    EXPECT_EQ(ReasonOf(refused.status()), "SPEC_INVALID");
    EXPECT_EQ(ValuesOf(refused.status())["value"], std::to_string(stages));
  }
}

}  // namespace
}  // namespace penstock
