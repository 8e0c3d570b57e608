#include "engine/plan/skip_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One layer per stage.
std::vector<SkipRoute> LayOutEach(const std::vector<SkipDeclaration>& skips) {
  std::vector<int> first_layers(skips.size());
  std::iota(first_layers.begin(), first_layers.end(), 0);
  return LayOutSkips(skips, first_layers);
}

SkipRoute Route(int from, int to, std::vector<SkipName> names) {
  return {.edge = {from, to}, .names = std::move(names)};
}

SkipDeclaration Stashes(std::vector<SkipName> names) { return {.stashes = std::move(names), .pops = {}}; }
SkipDeclaration Pops(std::vector<SkipName> names) { return {.stashes = {}, .pops = std::move(names)}; }

const SkipName kFoo = {"", "foo"};
const SkipName kBar = {"", "bar"};

TEST(SkipLayout, SkipLayoutsNone) { EXPECT_THAT(LayOutEach({{}, {}}), IsEmpty()); }

TEST(SkipLayout, SkipLayoutsInner) { EXPECT_THAT(LayOutSkips({Stashes({kFoo}), Pops({kFoo}), {}}, {0, 2}), IsEmpty()); }

TEST(SkipLayout, SkipLayoutsAdjoining) {
  EXPECT_THAT(LayOutEach({Stashes({kFoo}), Pops({kFoo})}), ElementsAre(Route(0, 1, {kFoo})));
}

TEST(SkipLayout, SkipLayoutsFar) {
  EXPECT_THAT(LayOutEach({Stashes({kFoo}), {}, Pops({kFoo})}), ElementsAre(Route(0, 2, {kFoo})));
}

TEST(SkipLayout, SkipLayoutsTwoSources) {
  EXPECT_THAT(LayOutEach({Stashes({kFoo}), Stashes({kBar}), Pops({kFoo, kBar})}),
              ElementsAre(Route(0, 2, {kFoo}), Route(1, 2, {kBar})));
}

TEST(SkipLayout, SkipLayoutsNamespaces) {
  const SkipName one = {"ns1", "foo"};
  const SkipName two = {"ns2", "foo"};
  EXPECT_THAT(LayOutEach({Stashes({one}), Stashes({two}), Pops({one, two})}),
              ElementsAre(Route(0, 2, {one}), Route(1, 2, {two})));
}

TEST(SkipLayout, RoutesAreSortedByDestinationThenSource) {
  const SkipName late = {"", "a"};
  EXPECT_THAT(LayOutEach({Stashes({late, kFoo}), Stashes({kBar}), Pops({kBar, kFoo}), Pops({late})}),
              ElementsAre(Route(0, 2, {kFoo}), Route(1, 2, {kBar}), Route(0, 3, {late})));
}

TEST(SkipLayout, SkipsWithinAStageNeedNoRoute) {
  const std::vector<SkipDeclaration> skips = {Stashes({kFoo}), Stashes({kBar}), Pops({kFoo}), Pops({kBar})};
  EXPECT_THAT(LayOutSkips(skips, {0}), IsEmpty());
  EXPECT_THAT(LayOutSkips(skips, {0, 3}), ElementsAre(Route(0, 1, {kBar})));
}

TEST(SkipLayout, NamesStandInTheOrderOfTheStashes) {
  const SkipName third = {"z", "c"};
  const std::vector<SkipDeclaration> skips = {Stashes({kFoo, kBar}), Stashes({third}), Pops({third, kBar}),
                                              Pops({kFoo})};
  EXPECT_THAT(LayOutSkips(skips, {0, 2}), ElementsAre(Route(0, 1, {kFoo, kBar, third})));
  std::vector<SkipDeclaration> turned = skips;
  turned[0].stashes = {kBar, kFoo};
  EXPECT_THAT(LayOutSkips(turned, {0, 2}), ElementsAre(Route(0, 1, {kBar, kFoo, third})));
}

TEST(SkipLayout, AModelWithoutDeclarationsHasNoRoutes) { EXPECT_THAT(LayOutSkips({}, {0, 3, 5}), IsEmpty()); }

}  // namespace
}  // namespace penstock
