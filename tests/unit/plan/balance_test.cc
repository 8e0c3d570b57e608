#include "engine/plan/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "engine/base/error.h"
#include "engine/plan/partition.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

struct Vector {
  std::vector<double> costs;
  int parts;
  std::vector<int> lengths;
};

double LargestBlock(const std::vector<double>& costs, const std::vector<int>& lengths) {
  double largest = 0;
  auto next = costs.begin();
  for (int length : lengths) {
    largest = std::max(largest, std::accumulate(next, next + length, 0.0));
    next += length;
  }
  return largest;
}

std::vector<int> Exact(const std::vector<double>& costs, int parts) {
  return PartitionExactly({.costs = costs, .boundary_bytes = std::vector<int64_t>(costs.size(), 0)}, parts).value();
}

bool HoldsEveryElementOnce(const std::vector<int>& lengths, size_t count, int parts) {
  return static_cast<int>(lengths.size()) == parts &&
         std::all_of(lengths.begin(), lengths.end(), [](int n) { return n > 0; }) &&
         std::accumulate(lengths.begin(), lengths.end(), size_t{0}) == count;
}

std::vector<double> Reversed(std::vector<double> costs) {
  std::reverse(costs.begin(), costs.end());
  return costs;
}

std::vector<double> Ones(int count) { return std::vector<double>(count, 1); }

std::vector<Vector> Vectors() {
  const std::vector<double> pi = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9};
  const std::vector<double> ten = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<double> powers = {2, 4, 8, 16, 32, 64, 128, 256};
  return {
      {{1, 2, 3, 4, 5, 6}, 2, {4, 2}},
      {{6, 5, 4, 3, 2, 1}, 2, {2, 4}},
      {{0, 0}, 2, {1, 1}},
      {{42}, 1, {1}},
      {{1, 1000}, 2, {1, 1}},
      {Ones(4), 2, {2, 2}},
      {Ones(5), 2, {2, 3}},
      {Ones(5), 3, {1, 1, 3}},
      {std::vector<double>(7, 5), 3, {2, 2, 3}},
      {Ones(10), 3, {3, 3, 4}},
      {Ones(10), 4, {2, 2, 2, 4}},
      {{10, 1, 1, 1, 1, 1}, 2, {3, 3}},
      {{1, 1, 1, 1, 1, 10}, 2, {3, 3}},
      {ten, 3, {6, 2, 2}},
      {ten, 4, {5, 2, 2, 1}},
      {{100, 1, 1, 1, 1, 100}, 3, {2, 2, 2}},
      {pi, 4, {6, 4, 3, 2}},
      {pi, 5, {5, 3, 3, 2, 2}},
      {{1000, 1, 1, 1, 1, 1, 1, 1}, 4, {2, 2, 2, 2}},
      {{0, 0, 0, 0, 0, 7}, 2, {3, 3}},
      {{7, 0, 0, 0, 0, 0}, 2, {3, 3}},
      {powers, 4, {5, 1, 1, 1}},
      {Reversed(powers), 4, {1, 1, 1, 5}},
      {{10, 20, 30, 40, 50, 60, 70, 80}, 8, {1, 1, 1, 1, 1, 1, 1, 1}},
  };
}

TEST(Balance, GivesTheAncestorsBlocks) {
  for (const Vector& vector : Vectors()) {
    const auto lengths = BlockPartition(vector.costs, vector.parts);
    ASSERT_TRUE(lengths.ok()) << lengths.status();
    EXPECT_EQ(*lengths, vector.lengths) << ::testing::PrintToString(vector.costs) << " in " << vector.parts;
  }
}

// Found by comparing the ancestor's rule with its opposite.
TEST(Balance, OfEqualBlocksTheLastIsTheLargestAndTheFirstTheSmallest) {
  EXPECT_EQ(BlockPartition({2, 1, 0, 0, 2, 1}, 3).value(), (std::vector<int>{2, 3, 1}));
  EXPECT_EQ(BlockPartition({1, 0, 1, 2, 2}, 3).value(), (std::vector<int>{3, 1, 1}));
}

TEST(Balance, RefusesNoPartsAndTooFewElements) {
  const auto refusal = [](const std::vector<double>& costs, int parts) {
    const absl::Status status = BlockPartition(costs, parts).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
    EXPECT_EQ(ValuesOf(status)["field"], "spec.cut.stages");
    EXPECT_EQ(ValuesOf(status)["value"], std::to_string(parts));
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({42}, 0), HasSubstr("partitions must be a positive integer (0 < 1)"));
  EXPECT_THAT(refusal({42}, -1), HasSubstr("partitions must be a positive integer (-1 < 1)"));
  EXPECT_THAT(refusal({}, 1), HasSubstr("sequence is shorter than intended partitions (0 < 1)"));
  EXPECT_THAT(refusal({42}, 2), HasSubstr("sequence is shorter than intended partitions (1 < 2)"));
}

struct Defect {
  std::vector<double> costs;
  int parts;
  double largest;
};

void ExpectBothModesHeal(const std::vector<Defect>& defects) {
  for (const Defect& defect : defects) {
    const std::vector<int> exact = Exact(defect.costs, defect.parts);
    EXPECT_TRUE(HoldsEveryElementOnce(exact, defect.costs.size(), defect.parts));
    EXPECT_EQ(LargestBlock(defect.costs, exact), defect.largest);
    EXPECT_EQ(BlockPartition(defect.costs, defect.parts).value(), exact);
  }
}

TEST(Balance, AnEmptyBlockGivesWayToTheExactOnes) { ExpectBothModesHeal({{{0, 0, 1, 1}, 3, 1}, {{1, 1, 2, 2}, 3, 2}}); }

TEST(Balance, AnEndlessSearchGivesWayToTheExactBlocks) {
  ExpectBothModesHeal({{{0, 0, 0, 0, 1, 100}, 5, 100}, {{1, 1, 1, 1, 2, 101}, 5, 101}});
}

TEST(Balance, ARoundingCycleGivesWayToTheExactBlocks) {
  ExpectBothModesHeal({{{46, 48, 10, 7, 7, 33, 44, 46, 49, 14, 35, 11}, 4, 101}});
}

TEST(Balance, NoElementIsThereTwice) { ExpectBothModesHeal({{{0, 0, 0, 1, 1}, 4, 1}}); }

TEST(Balance, TheExactModeFindsTheLeastBottleneck) {
  const std::vector<double> costs = {10, 1, 1, 1, 1, 1};
  EXPECT_EQ(Exact(costs, 2), (std::vector<int>{1, 5}));
  EXPECT_EQ(LargestBlock(costs, Exact(costs, 2)), 10);
  EXPECT_EQ(LargestBlock(costs, BlockPartition(costs, 2).value()), 12);  // as the ancestor's
}

// Tries every cut.
double LeastBottleneck(const std::vector<double>& costs, int parts, size_t begin = 0) {
  if (parts == 1) return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin), costs.end(), 0.0);
  double least = std::numeric_limits<double>::infinity();
  double block = 0;
  for (size_t end = begin + 1; end + parts - 1 <= costs.size(); ++end) {
    block += costs[end - 1];
    least = std::min(least, std::max(block, LeastBottleneck(costs, parts - 1, end)));
  }
  return least;
}

// Some inputs are small numbers, some have many zeros, some a giant: those are where the ancestor fails.
std::vector<double> RandomCosts(std::mt19937& random, int count) {
  const unsigned most = std::vector<unsigned>{1, 3, 10, 100, 1000}[random() % 5];
  std::vector<double> costs;
  for (int i = 0; i < count; ++i) costs.push_back(random() % 20 == 0 ? 10.0 * most : random() % (most + 1));
  return costs;
}

TEST(Balance, BothModesHoldEveryElementOnceInNonEmptyBlocks) {
  std::mt19937 random(0);
  int equal = 0;
  for (int round = 0; round < 20'000; ++round) {
    const int count = 1 + static_cast<int>(random() % 14);
    const int parts = 1 + static_cast<int>(random() % count);
    const std::vector<double> costs = RandomCosts(random, count);
    const auto blocks = BlockPartition(costs, parts);
    ASSERT_TRUE(blocks.ok()) << blocks.status();
    ASSERT_TRUE(HoldsEveryElementOnce(*blocks, costs.size(), parts)) << ::testing::PrintToString(costs);
    const std::vector<int> exact = Exact(costs, parts);
    ASSERT_TRUE(HoldsEveryElementOnce(exact, costs.size(), parts)) << ::testing::PrintToString(costs);
    if (count <= 10) {
      ASSERT_EQ(LargestBlock(costs, exact), LeastBottleneck(costs, parts)) << ::testing::PrintToString(costs);
    }
    if (*blocks == exact) ++equal;
  }
  EXPECT_LT(equal, 20'000);  // the modes differ
}

}  // namespace
}  // namespace penstock
