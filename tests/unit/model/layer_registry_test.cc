#include "engine/model/layer_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec Reference(const std::string& name, OptionMap options = {}) { return {name, std::move(options), {}}; }

// Expects SPEC_INVALID for this field and value.
void ExpectSpecError(const absl::Status& status, const std::string& field, const std::string& value) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
  EXPECT_EQ(ValuesOf(status)["field"], field);
  EXPECT_EQ(ValuesOf(status)["value"], value);
}

TEST(ExpandModel, ExpandsTheMlp) {
  const auto layers = ExpandModel(Reference("mlp"));
  ASSERT_TRUE(layers.ok());
  ASSERT_EQ(layers->size(), 16u);
  EXPECT_EQ(layers->back().name, "block15");
  EXPECT_EQ(std::get<int64_t>(layers->back().options.at("width")), 1024);
}

TEST(ExpandModel, ExpandsTheGpt) {
  const auto layers = ExpandModel(Reference("gpt", {{"blocks", int64_t{3}}, {"dropout", 0.1}}));
  ASSERT_TRUE(layers.ok());
  std::vector<std::string> kinds;
  for (const LayerSpec& layer : *layers) kinds.push_back(layer.kind);
  EXPECT_THAT(kinds, ElementsAre("gpt_embedding", "gpt_block", "gpt_block", "gpt_block", "gpt_head"));
  EXPECT_EQ(std::get<double>((*layers)[2].options.at("dropout")), 0.1);
}

TEST(ExpandModel, NamesWhatIsWrong) {
  EXPECT_EQ(ReasonOf(ExpandModel(Reference("lenet")).status()), "MODEL_NOT_FOUND");
  EXPECT_EQ(ExpandModel(Reference("lenet")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ExpandModel(Reference("net.pt2")).status().message()),
              HasSubstr("an exported program is named by spec.model.program, got net.pt2"));
  EXPECT_THAT(std::string(ExpandModel(Reference("lenet")).status().message()),
              HasSubstr("amoebanet, gpt, identity, mlp, resnet, unet"));
  ExpectSpecError(ExpandModel({}).status(), "spec.model", "none");
  ExpectSpecError(ExpandModel({"mlp", {}, {{"relu", "", {}}}}).status(), "spec.model", "both");
  ExpectSpecError(ExpandModel({"", {{"width", int64_t{1}}}, {{"relu", "", {}}}}).status(), "spec.model.options",
                  "width");
  ExpectSpecError(ExpandModel(Reference("mlp", {{"layers", int64_t{0}}})).status(), "spec.model.options[layers]", "0");
  ExpectSpecError(ExpandModel(Reference("mlp", {{"width", int64_t{-4}}})).status(), "spec.model.options[width]", "-4");
  ExpectSpecError(ExpandModel(Reference("gpt", {{"heads", int64_t{3}}})).status(), "spec.model.options[heads]", "3");
  ExpectSpecError(ExpandModel(Reference("gpt", {{"depth", int64_t{3}}})).status(), "spec.model.options[depth]", "3");
  ExpectSpecError(ExpandModel(Reference("gpt", {{"dropout", 1.5}})).status(), "spec.model.options[dropout]", "1.5");
  ExpectSpecError(ExpandModel({"", {}, std::vector<LayerSpec>(4097, {"relu", "", {}})}).status(), "spec.model.layers",
                  "4097");
}

TEST(ExpandModel, FillsInAndChecksNames) {
  const auto layers = ExpandModel({"", {}, {{"relu", "", {}}, {"relu", "second", {}}, {"gelu", "", {}}}});
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ((*layers)[0].name, "layer0");
  EXPECT_EQ((*layers)[2].name, "layer2");
  ExpectSpecError(ExpandModel({"", {}, {{"relu", "a", {}}, {"relu", "a", {}}}}).status(), "spec.model.layers[1].name",
                  "a");
  for (const std::string& bad : {std::string("a.b"), std::string("a/b"), std::string("-a"), std::string("a b"),
                                 std::string("\xc3\xa4"), std::string(65, 'a')}) {
    EXPECT_EQ(ValuesOf(ExpandModel({"", {}, {{"relu", bad, {}}}}).status())["field"], "spec.model.layers[0].name")
        << bad;
  }
}

TEST(BuildLayers, NamesKindAndOptionThatAreWrong) {
  const auto kind = BuildLayers({{"relu", "a", {}}, {"convolution", "b", {}}}, 0);
  ExpectSpecError(kind.status(), "spec.model.layers[1].kind", "convolution");
  EXPECT_THAT(std::string(kind.status().message()), HasSubstr("gpt_block, gpt_embedding"));
  ExpectSpecError(BuildLayers({{"linear", "a", {{"in", int64_t{2}}}}}, 0).status(), "spec.model.layers[0].options[out]",
                  "nothing");
  ExpectSpecError(BuildLayers({{"linear", "a", {{"in", int64_t{1} << 40}, {"out", int64_t{1}}}}}, 0).status(),
                  "spec.model.layers[0].options[in]", "1099511627776");
  ExpectSpecError(BuildLayers({{"gpt_block", "a", {{"width", int64_t{6}}, {"heads", int64_t{4}}}}}, 0).status(),
                  "spec.model.layers[0].options[heads]", "4");
  ExpectSpecError(BuildLayers({{"relu", "a", {{"p", 0.5}}}}, 0).status(), "spec.model.layers[0].options[p]", "0.5");
}

TEST(BuildLayers, GivesWeightsThatDependOnSeedPositionAndOptionsOnly) {
  const LayerSpec linear = {"linear", "a", {{"in", int64_t{5}}, {"out", int64_t{4}}}};
  const auto weight = [](const std::vector<NamedLayer>& layers, size_t i) {
    return layers[i].layer->parameters()[0].tensor.detach();
  };
  const auto first = *BuildLayers({linear, linear}, 1);
  const auto again = *BuildLayers({{"layer_norm", "n", {{"width", int64_t{3}}}}, linear}, 1);
  const auto other = *BuildLayers({linear, linear}, 2);
  EXPECT_TRUE(weight(first, 1).equal(weight(again, 1))) << "what stands before does not matter";
  EXPECT_FALSE(weight(first, 0).equal(weight(first, 1)));
  EXPECT_FALSE(weight(first, 0).equal(weight(other, 0)));
}

TEST(BuildLayerShapes, TakesNoMemory) {
  // 64 GiB of parameters.
  const auto layers =
      BuildLayerShapes(*ExpandModel(Reference("mlp", {{"layers", int64_t{4}}, {"width", int64_t{65536}}})));
  ASSERT_TRUE(layers.ok()) << layers.status();
  int64_t bytes = 0;
  for (const NamedLayer& layer : *layers) bytes += ByteSize(layer.layer->parameters());
  EXPECT_EQ(bytes, 4 * (int64_t{65536} * 65536 + 65536) * 4);
}

TEST(BuildLayerShapes, CountsWhatBuildLayersMakes) {
  const auto specs = *ExpandModel(Reference("gpt", {{"blocks", int64_t{2}}, {"width", int64_t{16}}}));
  const auto shapes = *BuildLayerShapes(specs);
  const auto real = *BuildLayers(specs, 0);
  ASSERT_EQ(shapes.size(), real.size());
  for (size_t i = 0; i < real.size(); ++i) {
    const NamedTensors& shape = shapes[i].layer->parameters();
    const NamedTensors& made = real[i].layer->parameters();
    ASSERT_EQ(shape.size(), made.size());
    for (size_t p = 0; p < made.size(); ++p) {
      EXPECT_EQ(shape[p].name, made[p].name);
      EXPECT_EQ(shape[p].tensor.sizes(), made[p].tensor.sizes());
    }
  }
}

TEST(RegisterLayerKind, AddsAKindOnce) {
  const LayerFactory factory = [](const LayerRequest& request) {
    return absl::StatusOr<std::unique_ptr<Layer>>(InvalidField(request.path, "never builds", "x"));
  };
  EXPECT_TRUE(RegisterLayerKind("registry_test_kind", factory).ok());
  EXPECT_EQ(RegisterLayerKind("registry_test_kind", factory).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(RegisterLayerKind("linear", factory).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ValuesOf(BuildLayers({{"registry_test_kind", "a", {}}}, 0).status())["field"],
            "spec.model.layers[0].options");
  EXPECT_THAT(LayerKinds(), ::testing::Contains("registry_test_kind"));
  EXPECT_TRUE(BuildLayers({{"relu", "a", {}}}, 0).ok());
}

}  // namespace
}  // namespace penstock
