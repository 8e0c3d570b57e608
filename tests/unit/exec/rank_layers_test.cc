// Each rank builds its own layers, and no others, with the weights that one process would give them.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/model/layer_registry.h"
#include "tests/unit/exec/over_ranks.h"

namespace penstock::testing {
namespace {

constexpr int64_t kWidth = 4;

std::map<std::string, int> built;  // with memory, by path

class CountedLayer : public Layer {
 public:
  explicit CountedLayer(const at::Tensor& weight) : weight_(AddParameter("weight", weight)) {}
  Batch Forward(const Batch& inputs, const LayerContext&) override { return {at::matmul(inputs.TensorAt(0), weight_)}; }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", DataType::kFp32, {-1, kWidth}}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", DataType::kFp32, {-1, kWidth}}}; }

 private:
  const at::Tensor weight_;
};

at::Tensor* common = nullptr;  // of all layers with the option "shared"

absl::StatusOr<std::unique_ptr<Layer>> MakeCounted(const LayerRequest& request) {
  if (request.shapes_only) return std::make_unique<CountedLayer>(at::empty({kWidth, kWidth}, at::kMeta));
  ++built[request.path];
  if (!request.options.empty()) return std::make_unique<CountedLayer>(*common);
  return std::make_unique<CountedLayer>(at::randn({kWidth, kWidth}, request.generator));
}

PipelineSpec Spec(std::vector<int> balance, bool shared = false) {
  static const bool registered = RegisterLayerKind("test_counted", MakeCounted).ok();
  EXPECT_TRUE(registered);
  const OptionMap options = shared ? OptionMap{{"shared", true}} : OptionMap();
  std::vector<LayerSpec> layers;
  for (const char* name : {"a", "b", "c", "d"}) layers.push_back(Built("test_counted", options, name));
  return Pipe(std::move(layers), std::move(balance), 2);
}

TEST(LayersOfRanks, AreBuiltOnceWhereTheyBelong) {
  built.clear();
  GroupInProcess group(3, ThreeCpus());
  DevicePool devices(ThreeCpus(), DevicePool::Mode::kThreads);
  const auto plain = MakeAlone(devices, Spec({1, 2, 1}));
  const std::map<std::string, int> once = std::exchange(built, {});  // and what is measured, one by one
  for (const std::vector<int>& ranks : {std::vector<int>{0, 1, 2}, {2, 1, 2}, {1, 0, 1}}) {
    built.clear();
    const auto over = MakeOver(group, Spec({1, 2, 1}), ranks);
    EXPECT_EQ(built, once);
    EXPECT_TRUE(SameState(*over, *plain));
  }
}

// The initial value of a tied parameter is its first use's, wherever that stands, also where a use beside it is a shape.
TEST(LayersOfRanks, AreBuiltTwiceWhereAnotherUsesTheirParameter) {
  GroupInProcess group(3, ThreeCpus());
  DevicePool devices(ThreeCpus(), DevicePool::Mode::kThreads);
  const ContributionRequest batch = Contribution(Range({6, kWidth}), Range({6, kWidth}).add(1));
  const std::vector<TieSpec> ties = {{{"b.weight", "d.weight"}}, {{"b.weight", "c.weight", "d.weight"}}};
  for (const TieSpec& tie : ties) {
    PipelineSpec spec = Spec({1, 2, 1});
    spec.model.ties = {tie};
    built.clear();
    const auto plain = MakeAlone(devices, spec);
    std::map<std::string, int> twice = std::exchange(built, {});
    ++twice["spec.model.layers[1].options"];
    ASSERT_TRUE(plain->TrainStep(batch, {}).ok());
    for (const std::vector<int>& ranks : {std::vector<int>{0, 1, 2}, {0, 1, 0}, {1, 2, 0}, {1, 0, 1}}) {
      built.clear();
      const auto over = MakeOver(group, spec, ranks);
      EXPECT_EQ(built, twice);
      ASSERT_TRUE(over->TrainStep(batch, {}).ok());
      EXPECT_TRUE(SameState(*over, *plain));
      ASSERT_TRUE(over->ImportState(plain->ExportState(true).value(), 1).ok()) << "with the copy of another rank's";
      EXPECT_TRUE(SameState(*over, *plain));
    }
  }
}

// No rank sees all of them, so that they can't be found.
TEST(LayersOfRanks, MustDeclareWhatTheyShare) {
  at::Tensor weight = at::ones({kWidth, kWidth});
  common = &weight;
  GroupInProcess group(2, ThreeCpus());
  for (const std::vector<int>& ranks : {std::vector<int>{0, 1}, {1, 0}}) {
    Pipeline::Options options;
    options.edits.plan = [&](Plan& plan) {
      for (size_t s = 0; s < ranks.size(); ++s) plan.stages[s].rank = Rank(ranks[s]);
    };
    const auto pipeline = Pipeline::Create(Spec({2, 2}, /*shared=*/true), group.Options(std::move(options)));
    EXPECT_EQ(ReasonOf(pipeline.status()), "SPEC_INVALID") << pipeline.status();
    EXPECT_EQ(ValuesOf(pipeline.status())["field"], "spec.model.ties");
  }
}

}  // namespace
}  // namespace penstock::testing
