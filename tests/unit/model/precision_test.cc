#include "engine/model/precision.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/model_signature.h"
#include "engine/model/run_layer.h"

namespace penstock {
namespace {

Batch RunAll(const std::vector<NamedLayer>& layers, Batch values) {
  SkipTracker tracker;
  KeyedRandom random(0, StepId(0), MicroBatchIndex(0), LayerIndex(0));
  for (const NamedLayer& layer : layers)
    values = RunLayer(layer, values, {.training = true, .random = &random}, tracker);
  return values;
}

ModelSpec Model(const std::string& dtype) {
  const LayerSpec norm = {"batch_norm", "norm", {{"features", int64_t{4}}}};
  const LayerSpec inner = {
      "sequential", "inner", {}, "", {}, {{"linear", "deep", {{"in", int64_t{3}}, {"out", int64_t{4}}}}, norm}};
  ModelSpec spec = {"", {}, {{"layer_norm", "first", {{"width", int64_t{3}}}}, inner}};
  spec.dtype = dtype;
  return spec;
}

TEST(BuildLayers, CastsParametersBuffersAndSignatures) {
  for (const auto& [dtype, type, wire] :
       std::vector<std::tuple<std::string, at::ScalarType, DataType>>{{"", at::kFloat, DataType::kFp32},
                                                                      {"fp32", at::kFloat, DataType::kFp32},
                                                                      {"fp64", at::kDouble, DataType::kFp64},
                                                                      {"bf16", at::kBFloat16, DataType::kBf16},
                                                                      {"fp16", at::kHalf, DataType::kFp16}}) {
    const ModelSpec spec = Model(dtype);
    const auto layers = *BuildLayers(*ExpandModel(spec), 5, BuildOptionsOf(spec));
    for (const NamedLayer& layer : layers) {
      for (const NamedTensor& one : layer.layer->parameters()) {
        EXPECT_EQ(one.tensor.scalar_type(), type) << one.name;
        EXPECT_TRUE(one.tensor.requires_grad() && one.tensor.is_leaf());
      }
      for (const NamedTensor& one : layer.layer->buffers()) {
        EXPECT_EQ(one.tensor.scalar_type(), one.tensor.dim() == 0 ? at::kLong : type) << one.name;
      }
    }
    const auto signature = *SignatureOf(layers, nullptr);
    EXPECT_EQ(signature.inputs[0].type, wire);
    EXPECT_EQ(signature.outputs[0].type, wire);
    const at::Tensor output = RunAll(layers, Batch(at::rand({6, 3}).to(type))).TensorAt(0);
    EXPECT_EQ(output.scalar_type(), type);
    output.square().sum().backward();
    EXPECT_EQ(layers[1].layer->parameters()[0].tensor.grad().scalar_type(), type);
    layers[1].layer->CommitStatistics();
    layers[1].layer->DiscardStatistics(MicroBatchIndex(0));
    const auto shapes = *BuildLayerShapes(*ExpandModel(spec), BuildOptionsOf(spec));
    EXPECT_EQ(shapes[1].layer->parameters()[0].tensor.scalar_type(), type);
    if (type != at::kFloat) {
      const absl::Status wrong = RunTorch([&] { RunAll(layers, Batch(at::rand({6, 3}).to(at::kFloat))); });
      EXPECT_EQ(ReasonOf(wrong), "TENSOR_SIGNATURE") << wrong;
    }
  }
}

TEST(BuildLayers, CastsTheSameFirstWeights) {
  const auto plain = *BuildLayers(*ExpandModel(Model("")), 5);
  const ModelSpec spec = Model("bf16");
  const auto cast = *BuildLayers(*ExpandModel(spec), 5, BuildOptionsOf(spec));
  EXPECT_TRUE(cast[1].layer->parameters()[0].tensor.equal(plain[1].layer->parameters()[0].tensor.to(at::kBFloat16)));
}

TEST(ExpandModel, RefusesUnknownPrecisions) {
  for (const char* field : {"dtype", "autocast"}) {
    ModelSpec spec = Model("");
    (field == std::string("dtype") ? spec.dtype : spec.autocast) = "int8";
    const absl::Status status = ExpandModel(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
    EXPECT_EQ(ValuesOf(status)["field"], std::string("spec.model.") + field);
    EXPECT_EQ(ValuesOf(status)["value"], "int8");
  }
  EXPECT_EQ(ValuesOf(BuildLayers({}, 0, {.dtype = "float"}).status())["field"], "spec.model.dtype");
  EXPECT_FALSE(AutocastOf("fp32").ok());
  EXPECT_FALSE(AutocastOf("")->has_value());
  EXPECT_EQ(**AutocastOf("bf16"), at::kBFloat16);
}

TEST(Layers, TakeWhatAutocastHasChosen) {
  const auto layers = *BuildLayers({{"linear", "a", {{"in", int64_t{3}}, {"out", int64_t{4}}}},
                                    {"linear", "b", {{"in", int64_t{4}}, {"out", int64_t{2}}}}},
                                   0);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const absl::Status status = RunTorch([&] {
    EXPECT_EQ(RunAll(layers, Batch(at::rand({2, 3}))).TensorAt(0).scalar_type(), at::kBFloat16);
  });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(status.ok()) << status;
}

// What the layers give for `input` under autocast to bf16.
at::Tensor RunUnderAutocast(const std::vector<NamedLayer>& layers, const at::Tensor& input) {
  at::Tensor output;
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const absl::Status status = RunTorch([&] { output = RunAll(layers, Batch(input)).TensorAt(0); });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(status.ok()) << status;
  return output;
}

// The operator written out, on values narrowed by hand.
TEST(Layers, AConvolutionUnderAutocastIsThatOfNarrowValues) {
  const OptionMap options = {{"in", int64_t{2}}, {"out", int64_t{3}}, {"image", int64_t{6}}};
  const auto layers = *BuildLayers({{"conv2d", "a", options}}, 0);
  const NamedTensors parameters = layers[0].layer->parameters();
  ASSERT_EQ(parameters.size(), 2u);
  const at::Tensor images = at::rand({2, 2, 6, 6});
  const at::Tensor output = RunUnderAutocast(layers, images);
  const at::Tensor narrow = at::conv2d(images.to(at::kBFloat16), parameters[0].tensor.to(at::kBFloat16),
                                       parameters[1].tensor.to(at::kBFloat16));
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(output.equal(narrow));
}

// Products in bf16, norms and sums in float, as LibTorch's autocast has them.
TEST(Layers, ADecoderBlockUnderAutocastMultipliesNarrowValues) {
  constexpr int64_t kWidth = 16;
  const auto layers = *BuildLayers({{"gpt_block", "a", {{"width", kWidth}, {"heads", int64_t{2}}}}}, 0);
  std::map<std::string, at::Tensor> weights;
  for (const NamedTensor& parameter : layers[0].layer->parameters())
    weights[parameter.name] = parameter.tensor.detach();
  const auto narrow = [](const at::Tensor& tensor) { return tensor.to(at::kBFloat16); };
  const auto linear = [&](const at::Tensor& input, const std::string& name) {
    return at::linear(narrow(input), narrow(weights.at(name + ".weight")), narrow(weights.at(name + ".bias")));
  };
  const auto norm = [&](const at::Tensor& input, const std::string& name) {
    return at::layer_norm(input, {kWidth}, weights.at(name + ".weight"), weights.at(name + ".bias"));
  };
  const at::Tensor input = at::rand({2, 5, kWidth});
  const auto parts = linear(norm(input, "attention.norm"), "attention.query_key_value")
                         .view({2, 5, 3, 2, kWidth / 2})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
  const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
  const at::Tensor middle = input.add(linear(mixed.transpose(1, 2).reshape({2, 5, kWidth}), "attention.projection"));
  const at::Tensor expanded = at::gelu(linear(norm(middle, "feed_forward.norm"), "feed_forward.expand"));
  const at::Tensor want = middle.add(linear(expanded, "feed_forward.contract"));

  const at::Tensor output = RunUnderAutocast(layers, input);
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_TRUE(output.equal(want));
  EXPECT_FALSE(RunAll(layers, Batch(input)).TensorAt(0).equal(want)) << "without autocast";
}

}  // namespace
}  // namespace penstock
