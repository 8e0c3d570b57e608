#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"
#include "engine/model/model_signature.h"
#include "engine/model/run_layer.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerSpec Linear(int64_t in, int64_t out, const std::string& name = "") {
  return {"linear", name, {{"in", in}, {"out", out}}};
}
LayerSpec Sequential(std::vector<LayerSpec> layers, const std::string& name = "") {
  return {"sequential", name, {}, "", {}, std::move(layers)};
}
LayerSpec Skip(const std::string& kind, const std::string& skip, const std::string& skip_namespace = "") {
  LayerSpec spec = {kind, "", {{"name", skip}}};
  if (!skip_namespace.empty()) spec.isolate = {{skip_namespace}};
  return spec;
}

std::vector<NamedLayer> Build(std::vector<LayerSpec> layers, uint64_t seed = 1) {
  auto built = BuildLayers(*ExpandModel({"", {}, std::move(layers)}), seed);
  EXPECT_TRUE(built.ok()) << built.status();
  return *std::move(built);
}

absl::Status BuildStatus(std::vector<LayerSpec> layers) {
  auto specs = ExpandModel({"", {}, std::move(layers)});
  if (!specs.ok()) return specs.status();
  return BuildLayers(*specs, 0).status();
}

Batch RunSequence(const std::vector<NamedLayer>& layers, Batch values) {
  SkipTracker tracker;
  for (const NamedLayer& layer : layers) values = RunLayer(layer, values, {}, tracker);
  EXPECT_TRUE(tracker.empty());
  return values;
}

std::vector<std::string> Names(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

TEST(RunLayer, GradientsComeLaidOutAsTheOutputIs) {
  const auto layers = Build({Linear(3, 4)});
  const at::Tensor output = RunSequence(layers, at::rand({5, 3})).TensorAt(0);
  std::vector<int64_t> strides;
  output.register_hook([&](const at::Tensor& gradient) { strides = gradient.strides().vec(); });
  at::cat({output, output.detach()}, 1).mul(at::rand({5, 8})).sum().backward();
  EXPECT_THAT(strides, ElementsAre(4, 1)) << "not as a part of the gradient of what both are in";
}

TEST(Sequential, RunsItsLayersWithTheirParametersUnderTheirNames) {
  const auto layers = Build({Sequential({Linear(3, 4, "in"), {"relu", "", {}}, Sequential({Linear(4, 2)}, "deep")})});
  const NamedTensors& parameters = layers[0].layer->parameters();
  EXPECT_THAT(Names(parameters), ElementsAre("in.weight", "in.bias", "deep.layer0.weight", "deep.layer0.bias"));
  const at::Tensor input = at::rand({5, 3});
  const at::Tensor output = RunSequence(layers, Batch(input)).TensorAt(0);
  const at::Tensor middle = at::relu(at::linear(input, parameters[0].tensor, parameters[1].tensor));
  EXPECT_TRUE(output.equal(at::linear(middle, parameters[2].tensor, parameters[3].tensor)));
  output.sum().backward();
  for (const NamedTensor& parameter : parameters) EXPECT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
  EXPECT_FALSE(parameters[0].tensor.equal(parameters[2].tensor.slice(0, 0, 1)));
}

TEST(Sequential, WeightsDependOnSeedAndPosition) {
  const LayerSpec spec = Sequential({Linear(3, 4), Linear(4, 3)});
  const auto first = Build({spec, spec}, 1);
  const auto again = Build({Linear(2, 2), spec}, 1);
  EXPECT_TRUE(first[1].layer->parameters()[2].tensor.equal(again[1].layer->parameters()[2].tensor));
  EXPECT_FALSE(first[1].layer->parameters()[2].tensor.equal(first[0].layer->parameters()[2].tensor));
}

TEST(Sequential, AnEmptyOneGivesWhatItTakes) {
  const at::Tensor input = at::rand({2});
  EXPECT_TRUE(RunSequence(Build({Sequential({})}), Batch(input)).TensorAt(0).is_same(input));
}

TEST(Sequential, SaysWhatItTakesAndGives) {
  const auto model = *SignatureOf(
      Build({Sequential({{"relu", "", {}}, Linear(3, 4)}), Sequential({{"gelu", "", {}}}), Linear(4, 6)}), nullptr);
  EXPECT_THAT(model.inputs[0].shape, ElementsAre(-1, 3));
  EXPECT_THAT(model.outputs[0].shape, ElementsAre(-1, 6));
  const auto deep =
      *SignatureOf(Build({{"gpt_block", "", {{"width", int64_t{8}}}}, Sequential({Linear(8, 5)})}), nullptr);
  EXPECT_THAT(deep.outputs[0].shape, ElementsAre(-1, -1, 5)) << "leading dimensions stay";
  const absl::Status misfit = BuildStatus({{"relu", "", {}}, Sequential({Linear(3, 4), Linear(5, 6)})});
  EXPECT_EQ(ReasonOf(misfit), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(misfit)["field"], "spec.model.layers[1].layers[1]");
}

TEST(Sequential, NamesFaultsOfInnerLayersByTheirPath) {
  const absl::Status option = BuildStatus({Sequential({Sequential({{"linear", "", {{"in", int64_t{3}}}}})})});
  EXPECT_EQ(ValuesOf(option)["field"], "spec.model.layers[0].layers[0].layers[0].options[out]");
  EXPECT_EQ(ValuesOf(BuildStatus({Sequential({{"nothing", "", {}}})}))["field"], "spec.model.layers[0].layers[0].kind");
  EXPECT_EQ(ValuesOf(BuildStatus({Sequential({{"relu", "a.b", {}}})}))["field"], "spec.model.layers[0].layers[0].name");
  EXPECT_EQ(ValuesOf(BuildStatus({Sequential({{"relu", "", {}, "cpu"}})}))["field"],
            "spec.model.layers[0].layers[0].device");
  EXPECT_EQ(ValuesOf(BuildStatus({{"relu", "", {}, "", {}, {Linear(1, 1)}}}))["field"], "spec.model.layers[0].layers");
  LayerSpec deep = Linear(1, 1);
  for (int i = 0; i < 9; ++i) deep = Sequential({deep});
  EXPECT_EQ(ReasonOf(BuildStatus({deep})), "SPEC_INVALID");
  const std::string long_name(60, 'a');
  EXPECT_EQ(ValuesOf(BuildStatus({Sequential({Linear(1, 1, long_name)}, long_name)}))["field"],
            "spec.model.layers[0].layers");
}

TEST(Sequential, RefusesOneNameTwice) {
  for (const auto& [layers, field] : std::vector<std::pair<std::vector<LayerSpec>, std::string>>{
           {{Linear(1, 1, "a"), Linear(1, 1, "a")}, "spec.model.layers[1].name"},
           {{Sequential({Linear(1, 1, "a"), Linear(1, 1, "a")})}, "spec.model.layers[0].layers[1].name"}}) {
    const absl::Status status = BuildStatus(layers);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ValuesOf(status)["field"], field);
    EXPECT_THAT(std::string(status.message()), HasSubstr("module with duplicate children is not supported"));
  }
  EXPECT_TRUE(BuildStatus({Sequential({Linear(1, 1, "a")}, "a"), Linear(1, 1, "b")}).ok()) << "siblings only";
}

TEST(Sequential, KeepsSkipsBetweenItsLayersInside) {
  const LayerSpec residual = Sequential({Skip("stash", "x"), {"relu", "", {}}, Skip("pop_add", "x")});
  const auto layers = Build({residual, residual});
  EXPECT_TRUE(layers[0].layer->skips().stashes.empty());
  EXPECT_TRUE(layers[0].layer->skips().pops.empty());
  const at::Tensor input = at::tensor({-1.0f, 2.0f});
  EXPECT_TRUE(RunSequence(layers, Batch(input)).TensorAt(0).equal(at::tensor({-1.0f, 8.0f})));
}

TEST(Sequential, DeclaresOutwardWhatHasOneEndInside) {
  const auto layers = Build({Sequential({Skip("stash", "x"), Skip("stash", "x", "other"), {"relu", "", {}}}),
                             Sequential({Skip("pop_add", "x", "other"), Skip("stash", "y"), Skip("pop_add", "x")}),
                             Skip("pop_add", "y")});
  EXPECT_THAT(layers[0].layer->skips().stashes, ElementsAre(SkipName{"", "x"}, SkipName{"other", "x"}));
  EXPECT_THAT(layers[1].layer->skips().pops, ElementsAre(SkipName{"other", "x"}, SkipName{"", "x"}));
  EXPECT_THAT(layers[1].layer->skips().stashes, ElementsAre(SkipName{"", "y"}));
  std::vector<SkipDeclaration> declarations;
  for (const NamedLayer& layer : layers) declarations.push_back(layer.layer->skips());
  EXPECT_TRUE(CheckSkips({"a", "b", "c"}, declarations).ok());
  // relu(-1) - 1 = -1, kept; -1 - 1 = -2; -2 - 1 = -3
  EXPECT_EQ(RunSequence(layers, Batch(at::full({1}, -1.0))).TensorAt(0).item<float>(), -3);

  layers[0].layer->Isolate({.skip_namespace = "moved", .only = {}});
  EXPECT_THAT(layers[0].layer->skips().stashes, ElementsAre(SkipName{"moved", "x"}, SkipName{"moved", "x"}));
}

TEST(Sequential, VerifiesSkipsOfNestedLayers) {
  const absl::Status twice =
      BuildStatus({Sequential({Skip("stash", "x"), Sequential({Skip("stash", "x")}), Skip("pop_add", "x")})});
  EXPECT_EQ(ReasonOf(twice), "WRONG_TYPE");
  EXPECT_EQ(ValuesOf(twice)["field"], "spec.model.layers[0].layers");
  EXPECT_THAT(std::string(twice.message()),
              HasSubstr("'layer1' redeclared 'x' as stashable but not isolated by namespace"));

  const auto lost = Build({Sequential({Sequential({Skip("stash", "x")})}), {"relu", "", {}}});
  const absl::Status status = CheckSkips({"a", "b"}, {lost[0].layer->skips(), lost[1].layer->skips()});
  EXPECT_THAT(std::string(status.message()), HasSubstr("no module declared 'x' as poppable but stashed"));
  const auto early = Build({Sequential({Skip("pop_add", "x")})});
  EXPECT_THAT(std::string(CheckSkips({"a"}, {early[0].layer->skips()}).message()),
              HasSubstr("'a' declared 'x' as poppable but it was not stashed"));
}

TEST(Identity, GivesAnyValuesBack) {
  const auto layers = *BuildLayers(*ExpandModel({"identity", {}, {}}), 0);
  const Batch values = Batch::Tuple({Value(at::ones({2})), Value(3), Value("text"), Value()});
  const Batch back = RunSequence(layers, values);
  ASSERT_EQ(back.size(), 4u);
  EXPECT_FALSE(back.atomic());
  EXPECT_TRUE(back.TensorAt(0).is_same(values.TensorAt(0)));
  EXPECT_EQ(*back[1].integer(), 3);
  EXPECT_TRUE(back[3].is_none());
  EXPECT_TRUE(RunSequence(layers, Batch(at::ones({2}))).atomic());
  const auto model = *SignatureOf(layers, nullptr);
  ASSERT_EQ(model.inputs.size(), 1u);
  EXPECT_TRUE(model.inputs[0].any);
  EXPECT_TRUE(model.outputs.empty());
}

}  // namespace
}  // namespace penstock
