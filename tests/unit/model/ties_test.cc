#include "engine/model/ties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

LayerSpec Linear(const std::string& name, int64_t in, int64_t out) {
  return {"linear", name, {{"in", in}, {"out", out}}};
}

std::vector<NamedLayer> Layers() {
  return *BuildLayerShapes({Linear("a", 3, 4), Linear("b", 4, 3), Linear("c", 3, 4), Linear("d", 3, 4)});
}

TEST(CheckTies, FindsUsesInModelOrder) {
  const auto groups = CheckTies({{{"d.weight", "a.weight", "c.weight"}}, {{"a.bias", "c.bias"}}}, Layers());
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_THAT((*groups)[0].uses, ElementsAre(TiedUse{0, 0}, TiedUse{2, 0}, TiedUse{3, 0}));
  EXPECT_THAT((*groups)[1].uses, ElementsAre(TiedUse{0, 1}, TiedUse{2, 1}));
  EXPECT_TRUE(CheckTies({}, Layers())->empty());
}

TEST(CheckTies, NamesWhatIsWrong) {
  const auto fault = [](const std::vector<TieSpec>& ties) { return CheckTies(ties, Layers()).status(); };
  const absl::Status unknown = fault({{{"a.weight", "c.weight"}}, {{"b.weight", "e.weight"}}});
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(unknown), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(unknown)["field"], "spec.model.ties[1].parameters[1]");
  EXPECT_EQ(ValuesOf(unknown)["value"], "e.weight");

  const absl::Status shapes = fault({{{"a.weight", "b.weight"}}});
  EXPECT_EQ(shapes.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(shapes), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(shapes)["value"], "[3, 4]");
  const absl::Status few = fault({{{"a.weight"}}});
  EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValuesOf(few)["field"], "spec.model.ties[0].parameters");
  EXPECT_FALSE(fault({{{}}}).ok());
  const absl::Status groups = fault({{{"a.weight", "c.weight"}}, {{"d.weight", "c.weight"}}});
  EXPECT_EQ(groups.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValuesOf(groups)["field"], "spec.model.ties[1].parameters[1]");
  EXPECT_FALSE(fault({{{"a.weight", "a.weight"}}}).ok());
}

}  // namespace
}  // namespace penstock
