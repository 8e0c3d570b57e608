#include "engine/autograd/seeds.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

namespace penstock {
namespace {

at::Tensor Normal(at::Generator generator, int64_t count) {
  return at::empty({count}, at::kDouble).normal_(0, 1, generator);
}

KeyedRandom Key(uint64_t seed, int64_t step, int micro_batch, int layer) {
  return KeyedRandom(seed, StepId(step), MicroBatchIndex(micro_batch), LayerIndex(layer));
}

TEST(KeyedRandom, RepeatsExactly) {
  KeyedRandom first = Key(7, 3, 2, 1);
  KeyedRandom again = Key(7, 3, 2, 1);
  for (int draw = 0; draw < 3; ++draw) EXPECT_TRUE(Normal(first.Next(), 100).equal(Normal(again.Next(), 100)));
}

TEST(KeyedRandom, HandsOutGeneratorsThatKnowNothingOfEachOther) {
  KeyedRandom random = Key(7, 3, 2, 1);
  at::Generator first = random.Next();
  Normal(first, 50);  // using the first must not move the second
  const at::Tensor second = Normal(random.Next(), 50);
  KeyedRandom again = Key(7, 3, 2, 1);
  again.Next();
  EXPECT_TRUE(Normal(again.Next(), 50).equal(second));
}

TEST(KeyedRandom, DiffersInEveryWordOfTheKey) {
  std::set<uint64_t> seen;
  int keys = 0;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 63}) {
    for (int64_t step : {int64_t{0}, int64_t{1}, int64_t{1} << 40}) {
      for (int micro_batch = 0; micro_batch < 4; ++micro_batch) {
        for (int layer = 0; layer < 4; ++layer) {
          KeyedRandom random = Key(seed, step, micro_batch, layer);
          for (int draw = 0; draw < 2; ++draw, ++keys) {
            seen.insert(std::bit_cast<uint64_t>(Normal(random.Next(), 1).item<double>()));
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), keys);
}

// Correlation of neighbours along each axis of the key: for independent samples it stays within five deviations.
TEST(KeyedRandom, IsIndependentBetweenNeighbours) {
  constexpr int64_t kCount = 20000;
  std::vector<at::Tensor> samples;
  for (const auto& [step, micro_batch, layer] :
       std::vector<std::array<int, 3>>{{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {2, 0, 0}}) {
    KeyedRandom random = Key(0, step, micro_batch, layer);
    samples.push_back(Normal(random.Next(), kCount));
    samples.push_back(Normal(random.Next(), kCount));
  }
  samples.push_back(Normal(InitialGenerator(0, LayerIndex(0)), kCount));
  for (size_t i = 0; i < samples.size(); ++i) {
    EXPECT_NEAR(samples[i].mean().item<double>(), 0, 5 / std::sqrt(kCount));
    EXPECT_NEAR(samples[i].square().mean().item<double>(), 1, 5 * std::sqrt(2.0 / kCount));
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NEAR(samples[i].mul(samples[j]).mean().item<double>(), 0, 5 / std::sqrt(kCount)) << i << " " << j;
    }
  }
}

// A generator whose state were seeded by 32 bits would repeat among this many keys with near certainty.
TEST(KeyedRandom, HasMoreStreamsThanASeedOf32Bits) {
  std::set<uint64_t> seen;
  constexpr int kKeys = 300000;
  for (int i = 0; i < kKeys; ++i) {
    KeyedRandom random = Key(1, i, 0, 0);
    at::Generator generator = random.Next();
    seen.insert(generator.get<at::CPUGeneratorImpl>()->random64());
  }
  EXPECT_EQ(seen.size(), kKeys);
}

TEST(InitialGenerator, DependsOnSeedAndLayer) {
  const at::Tensor base = Normal(InitialGenerator(5, LayerIndex(2)), 10);
  EXPECT_TRUE(base.equal(Normal(InitialGenerator(5, LayerIndex(2)), 10)));
  EXPECT_FALSE(base.equal(Normal(InitialGenerator(6, LayerIndex(2)), 10)));
  EXPECT_FALSE(base.equal(Normal(InitialGenerator(5, LayerIndex(3)), 10)));
}

}  // namespace
}  // namespace penstock
