#include "engine/plan/named_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<LayerSpec> Layers() {
  std::vector<LayerSpec> layers;
  for (const char* name : {"stem", "body", "neck", "head"})
    layers.push_back({.kind = "linear", .name = name, .options = {}});
  return layers;
}

CutSpec At(std::vector<std::string> starts) {
  CutSpec cut;
  cut.starts = std::move(starts);
  return cut;
}

TEST(NamedCut, TurnsNamesIntoABalance) {
  EXPECT_THAT(WithBalance(At({"neck"}), Layers())->balance, ElementsAre(2, 2));
  EXPECT_THAT(WithBalance(At({"body", "head"}), Layers())->balance, ElementsAre(1, 2, 1));
  EXPECT_TRUE(WithBalance(At({"body"}), Layers())->starts.empty());
}

TEST(NamedCut, LeavesOtherCutsAlone) {
  CutSpec cut;
  cut.stages = 3;
  EXPECT_EQ(WithBalance(cut, Layers())->stages, 3);
  EXPECT_TRUE(WithBalance(cut, Layers())->balance.empty());
}

TEST(NamedCut, NamesWhatIsWrong) {
  const auto fault = [](const CutSpec& cut) {
    const absl::Status status = WithBalance(cut, Layers()).status();
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
    return ValuesOf(status)["field"] + "=" + ValuesOf(status)["value"];
  };
  EXPECT_EQ(fault(At({"tail"})), "spec.cut.starts[0]=tail");
  EXPECT_EQ(fault(At({"stem"})), "spec.cut.starts[0]=stem");
  EXPECT_EQ(fault(At({"neck", "body"})), "spec.cut.starts[1]=body");
  EXPECT_EQ(fault(At({"neck", "neck"})), "spec.cut.starts[1]=neck");
  CutSpec both = At({"neck"});
  both.stages = 2;
  EXPECT_EQ(fault(both), "spec.cut.stages=2");
  both.balance = {2, 2};
  EXPECT_EQ(fault(both), "spec.cut.balance=[2, 2]");
  EXPECT_THAT(std::string(WithBalance(At({"tail"}), Layers()).status().message()), HasSubstr("body, neck, head"));
}

}  // namespace
}  // namespace penstock
