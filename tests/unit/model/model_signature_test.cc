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

LayerSpec Convolution(int64_t in, int64_t out) {
  return {"conv2d", "", {{"in", in}, {"out", out}, {"padding", int64_t{1}}}};
}
LayerSpec Group(std::vector<LayerSpec> layers) { return {"sequential", "", {}, "", {}, std::move(layers)}; }
const LayerSpec kPool = {"max_pool2d", "", {}};
const LayerSpec kUpsample = {"upsample", "", {}};
const LayerSpec kNorm = {"batch_norm", "", {{"features", int64_t{3}}}};

std::vector<int64_t> InputShape(const std::vector<LayerSpec>& layers) {
  const auto model = SignatureOf(Layers({"", {}, layers}), nullptr);
  EXPECT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->inputs.size(), 1u);
  return model->inputs[0].shape;
}

// A layer that only works on the last dimension says nothing of the others; who comes later may.
TEST(SignatureOf, ALaterLayerTellsHowManyDimensionsThereAre) {
  for (const bool grouped : {false, true}) {
    const auto in = [&](std::vector<LayerSpec> layers) {
      return InputShape(grouped ? std::vector<LayerSpec>{Group(std::move(layers))} : layers);
    };
    EXPECT_THAT(in({LinearSpec(6, 5), Convolution(3, 2)}), ElementsAre(-1, 3, -1, 6));
    EXPECT_THAT(in({LinearSpec(6, 256), {"relu", "", {}}, {"gpt_block", "", {}}}), ElementsAre(-1, -1, 6));
    EXPECT_THAT(in({LinearSpec(6, 5), kNorm, LinearSpec(5, 4)}), ElementsAre(-1, 6));
  }
}

TEST(SignatureOf, AGroupTakesWhatItsLayersTakeOneByOne) {
  const std::vector<LayerSpec> group = {LinearSpec(6, 5), kNorm, LinearSpec(5, 4)};
  const auto images = SignatureOf(Layers({"", {}, {Convolution(3, 3), Group(group)}}), nullptr);
  ASSERT_TRUE(images.ok()) << images.status();
  EXPECT_THAT(images->outputs[0].shape, ElementsAre(-1, 3, -1, 4));
  const auto flat =
      SignatureOf(Layers({"", {}, {Convolution(3, 3), Group({LinearSpec(6, 5), {"flatten", "", {}}})}}), nullptr);
  ASSERT_TRUE(flat.ok()) << flat.status();
  EXPECT_THAT(flat->outputs[0].shape, ElementsAre(-1, -1));
  const auto wrong = SignatureOf(Layers({"", {}, {LinearSpec(6, 7), Group(group)}}), nullptr);
  EXPECT_EQ(ValuesOf(wrong.status())["field"], "spec.model.layers[1]");
}

// Heights and widths that reach a layer are not those of the model's images.
TEST(SignatureOf, PoolingAndUpsamplingLeaveTheSizeOfImagesOpen) {
  for (const LayerSpec& resize : {kPool, kUpsample, Group({kPool, {"relu", "", {}}})}) {
    EXPECT_THAT(InputShape({resize, Convolution(3, 2)}), ElementsAre(-1, 3, -1, -1));
    EXPECT_THAT(InputShape({LinearSpec(8, 6), resize, Convolution(3, 2)}), ElementsAre(-1, 3, -1, 8));
    const auto before_width = SignatureOf(Layers({"", {}, {resize, LinearSpec(2, 5)}}), nullptr);
    ASSERT_TRUE(before_width.ok()) << before_width.status();
    EXPECT_TRUE(before_width->inputs[0].any) << "nobody says how wide its images are";
    const auto between =
        SignatureOf(Layers({"", {}, {Convolution(3, 2), LinearSpec(8, 6), resize, LinearSpec(3, 5)}}), nullptr);
    ASSERT_TRUE(between.ok()) << between.status();
    EXPECT_THAT(between->outputs[0].shape, ElementsAre(-1, 2, -1, 5));
    const auto channels = SignatureOf(Layers({"", {}, {Convolution(3, 2), resize, Convolution(3, 2)}}), nullptr);
    EXPECT_EQ(ValuesOf(channels.status())["field"], "spec.model.layers[2]") << "channels pass as they are";
  }
}

TEST(SignatureOf, NamesTheLayerThatDoesNotFit) {
  const auto wide = SignatureOf(Layers({"", {}, {LinearSpec(3, 5), {"relu", "", {}}, LinearSpec(6, 2)}}), nullptr);
  EXPECT_EQ(ReasonOf(wide.status()), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(wide.status())["field"], "spec.model.layers[2]");
  EXPECT_EQ(ValuesOf(wide.status())["value"], "FP32 [-1, 5]");
  const auto flat = SignatureOf(Layers({"", {}, {{"flatten", "", {}}, {"gpt_block", "", {}}}}), nullptr);
  EXPECT_EQ(ValuesOf(flat.status())["field"], "spec.model.layers[1]");
  const auto type = SignatureOf(Layers({"", {}, {LinearSpec(3, 256), {"gpt_embedding", "", {}}}}), nullptr);
  EXPECT_EQ(ValuesOf(type.status())["field"], "spec.model.layers[1]");
  const auto open = SignatureOf(Layers({"", {}, {{"relu", "", {}}}}), nullptr);
  EXPECT_EQ(ValuesOf(open.status())["field"], "spec.model.layers");
}

}  // namespace
}  // namespace penstock
