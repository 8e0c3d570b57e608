// What the layer kinds over images compute, against LibTorch's operators or the mathematics written out.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Layer> MakeImageLayer(const std::string& kind, OptionMap options = {}) {
  auto layers = BuildLayers({{kind, "layer", std::move(options)}}, 1);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return std::move(layers->front().layer);
}

at::Tensor ApplyToImage(Layer& layer, const at::Tensor& input, bool training = false, int step = 0) {
  KeyedRandom random(1, StepId(step), MicroBatchIndex(0), LayerIndex(0));
  return layer.Forward(Batch(input), {.training = training, .random = &random}).TensorAt(0);
}

at::Tensor ImageInput(at::IntArrayRef shape = {2, 3, 6, 8}) {
  return at::empty(shape).normal_(0, 1, InitialGenerator(3, LayerIndex(7)));
}

TEST(Conv2dLayer, ConvolvesWithItsOptions) {
  const auto layer = MakeImageLayer("conv2d", {{"in", int64_t{3}},
                                               {"out", int64_t{4}},
                                               {"kernel", int64_t{5}},
                                               {"stride", int64_t{2}},
                                               {"padding", int64_t{1}}});
  const at::Tensor weight = layer->parameters()[0].tensor;
  const at::Tensor bias = layer->parameters()[1].tensor;
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({4, 3, 5, 5}));
  EXPECT_TRUE(ApplyToImage(*layer, ImageInput()).equal(at::conv2d(ImageInput(), weight, bias, {2, 2}, {1, 1})));
  const double bound = 1 / std::sqrt(75.0);
  for (const at::Tensor& one : {weight, bias}) EXPECT_LE(one.abs().max().item<double>(), bound);
  EXPECT_NEAR(weight.detach().std().item<double>(), bound / std::sqrt(3.0), 0.01);
  EXPECT_EQ(MakeImageLayer("conv2d", {{"in", int64_t{3}}, {"out", int64_t{4}}, {"bias", false}})->parameters().size(),
            1u);
  for (const at::Tensor& wrong : {ImageInput({2, 4, 6, 6}), ImageInput({3, 6, 6}), ImageInput().to(at::kDouble)}) {
    const absl::Status status = RunTorch([&] { ApplyToImage(*layer, wrong); });
    EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE");
    EXPECT_THAT(std::string(status.message()), HasSubstr("conv2d"));
  }
}

TEST(PoolLayers, TakeTheLargestOrTheMean) {
  const at::Tensor input = ImageInput();
  const at::Tensor tiles = input.view({2, 3, 3, 2, 4, 2});
  EXPECT_TRUE(ApplyToImage(*MakeImageLayer("max_pool2d"), input).equal(tiles.amax({3, 5})));
  EXPECT_TRUE(at::allclose(ApplyToImage(*MakeImageLayer("avg_pool2d"), input), tiles.mean({3, 5}), 1e-5, 1e-6));
  const OptionMap wide = {{"kernel", int64_t{3}}, {"stride", int64_t{2}}, {"padding", int64_t{1}}};
  EXPECT_TRUE(
      ApplyToImage(*MakeImageLayer("max_pool2d", wide), input).equal(at::max_pool2d(input, {3, 3}, {2, 2}, {1, 1})));
  EXPECT_TRUE(
      ApplyToImage(*MakeImageLayer("avg_pool2d", wide), input).equal(at::avg_pool2d(input, {3, 3}, {2, 2}, {1, 1})));
  const at::Tensor one = ApplyToImage(*MakeImageLayer("global_avg_pool"), input);
  EXPECT_EQ(one.sizes(), at::IntArrayRef({2, 3, 1, 1}));
  EXPECT_TRUE(at::allclose(one, input.mean({2, 3}, true)));
}

TEST(UpsampleLayer, RepeatsPixels) {
  const at::Tensor input = ImageInput();
  EXPECT_TRUE(ApplyToImage(*MakeImageLayer("upsample", {{"scale", int64_t{3}}}), input)
                  .equal(input.repeat_interleave(3, 2).repeat_interleave(3, 3)));
}

TEST(FlattenLayer, KeepsTheRows) {
  EXPECT_TRUE(ApplyToImage(*MakeImageLayer("flatten"), ImageInput()).equal(ImageInput().view({2, 144})));
}

TEST(LeakyReluLayer, LetsALittleThrough) {
  const at::Tensor input = ImageInput();
  EXPECT_TRUE(at::allclose(ApplyToImage(*MakeImageLayer("leaky_relu", {{"slope", 0.2}}), input),
                           input.clamp_min(0) + input.clamp_max(0) * 0.2));
}

TEST(InstanceNormLayer, CentresEachChannelOfEachImage) {
  const at::Tensor input = ImageInput();
  const at::Tensor centred = input - input.mean({2, 3}, true);
  const at::Tensor want = centred / (centred.square().mean({2, 3}, true) + 1e-5).sqrt();
  for (const bool training : {false, true}) {
    EXPECT_TRUE(at::allclose(ApplyToImage(*MakeImageLayer("instance_norm"), input, training), want, 1e-4, 1e-5));
  }
}

TEST(Dropout2dLayer, DropsWholeChannelsWithTheKey) {
  const auto layer = MakeImageLayer("dropout2d", {{"p", 0.5}});
  const at::Tensor ones = at::ones({20, 30, 4, 4});
  const at::Tensor made = ApplyToImage(*layer, ones, /*training=*/true);
  EXPECT_TRUE(made.equal(made.narrow(2, 0, 1).narrow(3, 0, 1).expand_as(made))) << "all or nothing of a channel";
  EXPECT_TRUE((made.eq(0).logical_or(made.eq(2))).all().item<bool>());
  EXPECT_NEAR(made.mean().item<double>(), 1, 0.15);
  EXPECT_TRUE(made.equal(ApplyToImage(*layer, ones, true)));
  EXPECT_FALSE(made.equal(ApplyToImage(*layer, ones, true, 1)));
  EXPECT_TRUE(ApplyToImage(*layer, ones, false).equal(ones));
}

TEST(ResnetBottleneck, AddsItsInputOrAConvolutionOfIt) {
  const auto even = MakeImageLayer("resnet_bottleneck", {{"in", int64_t{8}}, {"width", int64_t{2}}});
  EXPECT_EQ(even->parameters().size(), 9u);
  const at::Tensor input = ImageInput({2, 8, 4, 4});
  for (const NamedTensor& parameter : even->parameters()) {
    if (parameter.name == "norm3.weight") parameter.tensor.set_data(at::zeros({8}));
  }
  EXPECT_TRUE(ApplyToImage(*even, input).equal(at::relu(input))) << "nothing is left but what goes around";
  const auto half =
      MakeImageLayer("resnet_bottleneck", {{"in", int64_t{8}}, {"width", int64_t{4}}, {"stride", int64_t{2}}});
  EXPECT_EQ(half->parameters().size(), 12u);
  EXPECT_EQ(ApplyToImage(*half, input).sizes(), at::IntArrayRef({2, 16, 2, 2}));
}

TEST(AmoebaCell, TakesOneTensorOrTwoAndGivesTwo) {
  const auto cell =
      MakeImageLayer("amoeba_cell", {{"nearer", int64_t{8}}, {"further", int64_t{4}}, {"channels", int64_t{4}}});
  const at::Tensor nearer = ImageInput({2, 8, 5, 6});
  const Batch made = cell->Forward(Batch::Tuple(std::vector<Value>{nearer, ImageInput({2, 4, 5, 6})}), {});
  ASSERT_EQ(made.size(), 2u);
  EXPECT_FALSE(made.atomic());
  EXPECT_EQ(made.TensorAt(0).sizes(), at::IntArrayRef({2, 16, 5, 6}));
  EXPECT_TRUE(made.TensorAt(1).is_same(nearer));
  const absl::Status wrong = RunTorch([&] { cell->Forward(Batch(nearer), {}); });
  EXPECT_EQ(ReasonOf(wrong), "TENSOR_SIGNATURE") << "the further one has other channels";

  const auto reduction = MakeImageLayer("amoeba_cell", {{"nearer", int64_t{8}},
                                                        {"further", int64_t{8}},
                                                        {"channels", int64_t{4}},
                                                        {"reduction", true},
                                                        {"first", true}});
  const Batch halved = reduction->Forward(Batch(nearer), {});
  EXPECT_EQ(halved.TensorAt(0).sizes(), at::IntArrayRef({2, 12, 3, 3}));
}

}  // namespace
}  // namespace penstock
