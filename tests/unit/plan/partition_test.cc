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

// Bytes that enter all stages but the first.
int64_t Entering(const PartitionInput& input, const std::vector<int>& balance) {
  std::vector<int> stage_of;
  int64_t bytes = 0;
  for (size_t s = 0; s < balance.size(); ++s) {
    if (s > 0) bytes += input.boundary_bytes[stage_of.size() - 1];
    stage_of.insert(stage_of.end(), balance[s], static_cast<int>(s));
  }
  for (const SkipBytes& skip : input.skips) {
    if (stage_of[skip.stashed_by] != stage_of[skip.popped_by]) bytes += skip.bytes;
  }
  return bytes;
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

// The fewest bytes of all cuts with the least bottleneck, found by trying every cut.
int64_t FewestBytesByTrying(const PartitionInput& input, int stages, double bottleneck) {
  const int layers = static_cast<int>(input.costs.size());
  int64_t fewest = std::numeric_limits<int64_t>::max();
  std::vector<int> balance;
  std::function<void(int)> extend = [&](int left) {
    if (static_cast<int>(balance.size()) == stages - 1) {
      balance.push_back(left);
      if (Bottleneck(input.costs, balance) <= bottleneck) fewest = std::min(fewest, Entering(input, balance));
      balance.pop_back();
      return;
    }
    for (int take = 1; take < left; ++take) {
      balance.push_back(take);
      extend(left - take);
      balance.pop_back();
    }
  };
  extend(layers);
  return fewest;
}

TEST(Partition, TakesTheFewestBytesOfAllCutsWithTheLeastBottleneck) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const int layers = 2 + static_cast<int>(random() % 8);
    const int stages = 1 + static_cast<int>(random() % layers);
    PartitionInput input;
    for (int i = 0; i < layers; ++i) {
      input.costs.push_back(static_cast<double>(random() % 4));
      input.boundary_bytes.push_back(random() % 10);
    }
    for (int skip = 0; skip < 3; ++skip) {
      const int from = static_cast<int>(random() % (layers - 1));
      input.skips.push_back(
          {from, from + 1 + static_cast<int>(random() % (layers - 1 - from)), static_cast<int64_t>(random() % 10)});
    }
    auto balance = PartitionExactly(input, stages);
    ASSERT_TRUE(balance.ok());
    const double bottleneck = BestByTrying(input.costs, stages);
    ASSERT_EQ(Bottleneck(input.costs, *balance), bottleneck) << "round " << round;
    EXPECT_EQ(Entering(input, *balance), FewestBytesByTrying(input, stages, bottleneck)) << "round " << round;
  }
}

TEST(Partition, BytesCostWhatTheyAreSaidToCost) {
  PartitionInput input = {.costs = {1, 1, 1, 1}, .boundary_bytes = {0, 10, 0, 0}, .cost_per_byte = 1};
  EXPECT_EQ(*PartitionExactly(input, 2), (std::vector<int>{1, 3}));
  input.skips = {{0, 3, 5}};  // crosses every cut
  input.boundary_bytes = {3, 0, 0, 0};
  EXPECT_EQ(*PartitionExactly(input, 2), (std::vector<int>{3, 1}));  // 3 beside 1 + 5
}

TEST(Partition, KeepsToWhatFitsIfAnythingDoes) {
  PartitionInput input = {.costs = {1, 1, 1, 1}, .boundary_bytes = {0, 0, 0, 0}};
  input.fits = [](int stage, int begin, int end) { return stage == 0 || end - begin == 1; };
  EXPECT_EQ(*PartitionExactly(input, 2), (std::vector<int>{3, 1}));
  input.fits = [](int, int, int) { return false; };
  EXPECT_EQ(*PartitionExactly(input, 2), (std::vector<int>{2, 2}));
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
