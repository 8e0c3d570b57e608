#include "engine/plan/named_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/layer_source.h"

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

// Modules of an exported program, one layer each.
class Modules : public LayerSource {
 public:
  explicit Modules(std::vector<std::string> modules) : modules_(std::move(modules)) {}
  int size() const override { return static_cast<int>(modules_.size()); }
  const std::string& name(int layer) const override { return modules_[static_cast<size_t>(layer)]; }
  const std::string& module(int layer) const override { return modules_[static_cast<size_t>(layer)]; }
  const std::vector<TieSpec>& ties() const override { return ties_; }
  std::shared_ptr<const std::string> file() const override { return nullptr; }
  absl::StatusOr<std::unique_ptr<Layer>> Build(int, const SourceOptions&) const override {
    return absl::UnimplementedError("nothing is built here");
  }

 private:
  const std::vector<std::string> modules_;
  const std::vector<TieSpec> ties_;
};

TEST(NamedCut, AModuleBeginsWithItsFirstPart) {
  const auto program = std::make_shared<const Modules>(std::vector<std::string>{"stem", "layer10.0", "layer1.0"});
  std::vector<LayerSpec> layers;
  for (int i = 0; i < program->size(); ++i) {
    layers.push_back({.kind = "exported", .options = {{"layer", int64_t{i}}}, .program = program});
  }
  EXPECT_THAT(WithBalance(At({"layer1"}), layers)->balance, ElementsAre(2, 1));
  EXPECT_THAT(WithBalance(At({"layer10"}), layers)->balance, ElementsAre(1, 2));
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
