// A case that fails is told as small as it can be made, and the edits make it again.

#include "tests/transparency/random_shrink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/transparency/value_layers.h"

namespace penstock::testing {
namespace {

constexpr int kTriesInTests = 2000;

bool Has(const RandomCase& one, const std::string& kind) {
  const std::vector<LayerSpec>& layers = one.spec.model.layers;
  return std::any_of(layers.begin(), layers.end(), [&](const LayerSpec& layer) { return layer.kind == kind; });
}

// The first case from seed 1 on that fails.
template <typename Fails>
RandomCase FirstOf(Fails fails) {
  EXPECT_TRUE(RegisterValueLayers().ok());
  for (uint64_t seed = 1;; ++seed) {
    RandomCase one = MakeRandomCase(seed);
    if (one.spec.model.layers.size() > 5 && fails(one)) return one;
  }
}

TEST(RandomShrink, LeavesWhatTheFaultNeedsAndNothingElse) {
  const auto fails = [](const RandomCase& one) {
    return Has(one, "gelu") && std::any_of(one.steps.begin(), one.steps.end(), [](const RandomStep& step) {
             return step.contributions.size() > 1 && step.contributions[0].rows >= 3;
           });
  };
  const RandomCase whole = FirstOf(fails);
  const ShrunkCase shrunk = Shrink(whole, fails, kTriesInTests);
  const RandomCase& one = shrunk.one;
  ASSERT_EQ(one.spec.model.layers.size(), 1u) << Describe(one);
  EXPECT_EQ(one.spec.model.layers[0].kind, "gelu");
  EXPECT_EQ(one.layout.balance, std::vector<int>{1});
  EXPECT_FALSE(one.move.has_value());
  EXPECT_EQ(one.spec.optimizer.name, "sgd");
  ASSERT_EQ(one.steps.size(), 1u);
  ASSERT_EQ(one.steps[0].contributions.size(), 2u);
  EXPECT_EQ(one.steps[0].contributions[0].rows, 3);
  EXPECT_EQ(one.steps[0].contributions[1].rows, 1);
  for (const RandomContribution& part : one.steps[0].contributions) {
    EXPECT_EQ(part.micro_batches, 1);
    EXPECT_FALSE(part.halves || part.poisoned || part.attempt != Attempt::kNone);
  }
}

TEST(RandomShrink, DropsAStashWithItsPop) {
  RandomCase one;
  one.spec.model.layers = {{"stash", "a", {{"name", "x"}}},
                           {"stash", "b", {{"name", "y"}}},
                           {"relu", "c", {}},
                           {"pop_add", "d", {{"name", "x"}}},
                           {"pop_cat", "e", {{"name", "y"}}}};
  one.layout.balance = {2, 3};
  ASSERT_TRUE(ApplyEdits("layer:0", one));
  ASSERT_EQ(one.spec.model.layers.size(), 3u);
  EXPECT_EQ(one.spec.model.layers[0].name, "b");
  EXPECT_EQ(one.spec.model.layers[2].name, "e");
  EXPECT_EQ(one.layout.balance, (std::vector<int>{1, 2}));
}

TEST(RandomShrink, TheEditsMakeTheSmallCaseAgain) {
  const auto fails = [](const RandomCase& one) { return Has(one, "batch_norm") && one.layout.balance.size() > 1; };
  const RandomCase whole = FirstOf(fails);
  const ShrunkCase shrunk = Shrink(whole, fails, kTriesInTests);
  RandomCase again = whole;
  ASSERT_TRUE(ApplyEdits(shrunk.edits, again));
  EXPECT_EQ(Describe(again), Describe(shrunk.one));
  EXPECT_NE(Describe(again), Describe(whole));
}

TEST(RandomShrink, RefusesEditsThatDoNotFit) {
  for (const char* edits : {"step:99", "layer:99", "rows:0.0.99", "nothing", "step", "step:x", "step:-1"}) {
    RandomCase one = FirstOf([](const RandomCase&) { return true; });
    EXPECT_FALSE(ApplyEdits(edits, one)) << edits;
  }
}

}  // namespace
}  // namespace penstock::testing
