#include "engine/model/model_signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

std::vector<NamedLayer> Layers(const ModelSpec& spec) { return *BuildLayerShapes(*ExpandModel(spec)); }

LayerSpec LinearSpec(int64_t in, int64_t out) { return {"linear", "", {{"in", in}, {"out", out}}}; }

TEST(SignatureOf, DescribesTheReferenceModels) {
  const auto cross_entropy = *MakeLoss({"cross_entropy", {}});
  const auto gpt = *SignatureOf(Layers({"gpt", {{"vocab", int64_t{77}}}, {}}), cross_entropy.get());
  ASSERT_EQ(gpt.inputs.size(), 1u);
  EXPECT_EQ(gpt.inputs[0].name, "tokens");
  EXPECT_EQ(gpt.inputs[0].type, DataType::kInt64);
  EXPECT_THAT(gpt.inputs[0].shape, ElementsAre(-1, -1));
  EXPECT_EQ(gpt.outputs[0].name, "logits");
  EXPECT_THAT(gpt.outputs[0].shape, ElementsAre(-1, -1, 77));
  ASSERT_EQ(gpt.targets.size(), 1u);
  EXPECT_EQ(gpt.targets[0].type, DataType::kInt64);
  EXPECT_THAT(gpt.targets[0].shape, ElementsAre(-1, -1));

  const auto squared = *MakeLoss({"mean_squared_error", {}});
  const auto mlp = *SignatureOf(Layers({"mlp", {{"width", int64_t{9}}}, {}}), squared.get());
  EXPECT_EQ(mlp.inputs[0].name, "input");
  EXPECT_THAT(mlp.inputs[0].shape, ElementsAre(-1, 9));
  EXPECT_EQ(mlp.outputs[0].name, "output");
  EXPECT_THAT(mlp.targets[0].shape, ElementsAre(-1, 9));
  EXPECT_TRUE(SignatureOf(Layers({"mlp", {}, {}}), nullptr)->targets.empty());
}

TEST(SignatureOf, LooksThroughLayersThatTakeAnything) {
  const auto model = *SignatureOf(
      Layers({"", {}, {{"dropout", "", {}}, LinearSpec(3, 5), {"relu", "", {}}, LinearSpec(5, 2), {"gelu", "", {}}}}),
      nullptr);
  EXPECT_THAT(model.inputs[0].shape, ElementsAre(-1, 3));
  EXPECT_EQ(model.outputs[0].name, "output");
  EXPECT_THAT(model.outputs[0].shape, ElementsAre(-1, 2));
}

TEST(SignatureOf, KeepsLeadingDimensions) {
  const auto model = *SignatureOf(
      Layers({"", {}, {{"gpt_block", "", {{"width", int64_t{8}}}}, LinearSpec(8, 5), {"relu", "", {}}}}), nullptr);
  EXPECT_THAT(model.outputs[0].shape, ElementsAre(-1, -1, 5));
}

TEST(SignatureOf, NamesTheLayerThatDoesNotFit) {
  const auto wide = SignatureOf(Layers({"", {}, {LinearSpec(3, 5), {"relu", "", {}}, LinearSpec(6, 2)}}), nullptr);
  EXPECT_EQ(ReasonOf(wide.status()), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(wide.status())["field"], "spec.model.layers[2]");
  EXPECT_EQ(ValuesOf(wide.status())["value"], "FP32 [-1, 5]");
  const auto flat = SignatureOf(Layers({"", {}, {LinearSpec(3, 256), {"gpt_block", "", {}}}}), nullptr);
  EXPECT_EQ(ValuesOf(flat.status())["field"], "spec.model.layers[1]");
  const auto type = SignatureOf(Layers({"", {}, {LinearSpec(3, 256), {"gpt_embedding", "", {}}}}), nullptr);
  EXPECT_EQ(ValuesOf(type.status())["field"], "spec.model.layers[1]");
  const auto open = SignatureOf(Layers({"", {}, {{"relu", "", {}}}}), nullptr);
  EXPECT_EQ(ValuesOf(open.status())["field"], "spec.model.layers");
}

}  // namespace
}  // namespace penstock
