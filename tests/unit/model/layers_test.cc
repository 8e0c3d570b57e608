// What each built-in kind computes, against the same mathematics written out by hand.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"
#include "engine/model/layers/dropout.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Layer> Make(const std::string& kind, OptionMap options, uint64_t seed = 1) {
  auto layers = BuildLayers({{kind, "layer", std::move(options)}}, seed);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return std::move(layers->front().layer);
}

// Fills all parameters, so that ones and zeros hide nothing, and returns one by name.
void Randomize(const Layer& layer) {
  at::NoGradGuard no_graph;
  at::Generator generator = InitialGenerator(99, LayerIndex(0));
  for (NamedTensor parameter : layer.parameters()) parameter.tensor.normal_(0, 0.3, generator);
}

at::Tensor Parameter(const Layer& layer, const std::string& name) {
  for (const NamedTensor& parameter : layer.parameters()) {
    if (parameter.name == name) return parameter.tensor.detach().to(at::kDouble);
  }
  ADD_FAILURE() << "no parameter " << name;
  return at::Tensor();
}

at::Tensor Input(at::IntArrayRef shape) { return at::empty(shape).normal_(0, 1, InitialGenerator(3, LayerIndex(7))); }

at::Tensor Apply(Layer& layer, const at::Tensor& input, bool training = false) {
  KeyedRandom random(1, StepId(2), MicroBatchIndex(3), LayerIndex(4));
  return layer.Forward(Batch(input), {.training = training, .recomputing = false, .random = &random}).TensorAt(0);
}

absl::Status RunStatus(Layer& layer, const Tensors& inputs) {
  return RunTorch([&] { layer.Forward(Batch::OfTensors(inputs), {}); });
}

void ExpectClose(const at::Tensor& got, const at::Tensor& want, double tolerance = 1e-5) {
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_LT((got.detach().to(at::kDouble) - want).abs().max().item<double>(), tolerance);
}

at::Tensor Normed(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor centred = x - x.mean(-1, true);
  return centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * weight + bias;
}

at::Tensor Linear(const at::Tensor& x, const Layer& layer, const std::string& name) {
  return at::matmul(x, Parameter(layer, name + ".weight").t()) + Parameter(layer, name + ".bias");
}

at::Tensor Gelu(const at::Tensor& x) { return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0))); }

TEST(LinearLayer, MultipliesAndAdds) {
  const auto layer = Make("linear", {{"in", int64_t{3}}, {"out", int64_t{5}}});
  const at::Tensor input = Input({4, 3});
  ExpectClose(Apply(*layer, input),
              at::matmul(input.to(at::kDouble), Parameter(*layer, "weight").t()) + Parameter(*layer, "bias"));
  const auto bare = Make("linear", {{"in", int64_t{3}}, {"out", int64_t{5}}, {"bias", false}});
  EXPECT_EQ(bare->parameters().size(), 1u);
  EXPECT_EQ(Apply(*bare, Input({2, 7, 3})).sizes(), at::IntArrayRef({2, 7, 5})) << "leading dimensions stay";
}

TEST(LinearLayer, StartsUniformWithinTheRootOfItsInputs) {
  const auto layer = Make("linear", {{"in", int64_t{400}}, {"out", int64_t{300}}});
  for (const char* name : {"weight", "bias"}) {
    const at::Tensor values = Parameter(*layer, name);
    EXPECT_LE(values.abs().max().item<double>(), 0.05);
    EXPECT_GT(values.abs().max().item<double>(), 0.049);
    EXPECT_NEAR(values.std().item<double>(), 0.05 / std::sqrt(3.0), 0.002);
  }
}

TEST(ReluAndGelu, AreElementWise) {
  const at::Tensor input = Input({50});
  EXPECT_TRUE(Apply(*Make("relu", {}), input).equal(input.clamp_min(0)));
  ExpectClose(Apply(*Make("gelu", {}), input), Gelu(input.to(at::kDouble)));
}

TEST(LayerNormLayer, CentresAndScalesTheLastDimension) {
  const auto layer = Make("layer_norm", {{"width", int64_t{6}}});
  EXPECT_TRUE(Parameter(*layer, "weight").equal(at::ones({6}, at::kDouble)));
  EXPECT_TRUE(Parameter(*layer, "bias").equal(at::zeros({6}, at::kDouble)));
  Randomize(*layer);
  const at::Tensor input = Input({2, 3, 6});
  ExpectClose(Apply(*layer, input),
              Normed(input.to(at::kDouble), Parameter(*layer, "weight"), Parameter(*layer, "bias")));
}

TEST(MlpBlockLayer, IsLinearThenReluThenDropout) {
  const auto layer = Make("mlp_block", {{"width", int64_t{8}}, {"dropout", 0.25}});
  const at::Tensor input = Input({5, 8});
  const at::Tensor plain =
      (at::matmul(input.to(at::kDouble), Parameter(*layer, "weight").t()) + Parameter(*layer, "bias")).clamp_min(0);
  ExpectClose(Apply(*layer, input), plain);
  KeyedRandom random(1, StepId(2), MicroBatchIndex(3), LayerIndex(4));
  const at::Tensor mask = Dropout(at::ones({5, 8}), 0.25, {.training = true, .recomputing = false, .random = &random});
  ExpectClose(Apply(*layer, input, /*training=*/true), plain * mask);
}

TEST(DropoutFunction, KeepsTheMeanAndRepeatsWithTheKey) {
  const at::Tensor ones = at::ones({200, 200});
  const auto draw = [&](int micro_batch) {
    KeyedRandom random(1, StepId(0), MicroBatchIndex(micro_batch), LayerIndex(0));
    return Dropout(ones, 0.3, {.training = true, .recomputing = false, .random = &random});
  };
  const at::Tensor first = draw(0);
  EXPECT_NEAR(first.eq(0).to(at::kDouble).mean().item<double>(), 0.3, 0.012);
  EXPECT_TRUE(first.masked_select(first.ne(0)).eq(1 / 0.7f).all().item<bool>());
  EXPECT_TRUE(first.equal(draw(0)));
  EXPECT_FALSE(first.equal(draw(1)));
}

TEST(DropoutFunction, DoesNothingWithoutTrainingOrProbability) {
  const at::Tensor input = Input({4});
  EXPECT_TRUE(Dropout(input, 0.5, {}).equal(input));
  KeyedRandom random(1, StepId(0), MicroBatchIndex(0), LayerIndex(0));
  const LayerContext training = {.training = true, .recomputing = false, .random = &random};
  EXPECT_TRUE(Dropout(input, 0, training).equal(input));
  EXPECT_TRUE(Dropout(input, 1, training).equal(at::zeros({4}))) << "no division by zero";
}

TEST(GptEmbeddingLayer, AddsTokensAndPositions) {
  const auto layer = Make("gpt_embedding", {{"vocab", int64_t{11}}, {"width", int64_t{4}}, {"sequence", int64_t{6}}});
  EXPECT_NEAR(Parameter(*layer, "position.weight").std().item<double>(), 0.02, 0.01);
  const at::Tensor tokens = at::tensor({0, 10, 3, 3, 7, 1}, at::kLong).view({2, 3});  // shorter than the sequence
  const at::Tensor want = Parameter(*layer, "token.weight").index_select(0, tokens.view(-1)).view({2, 3, 4}) +
                          Parameter(*layer, "position.weight").narrow(0, 0, 3);
  ExpectClose(Apply(*layer, tokens), want, 1e-7);
}

TEST(GptEmbeddingLayer, RefusesTokensBeforeItReadsTheTable) {
  const auto layer = Make("gpt_embedding", {{"vocab", int64_t{11}}, {"width", int64_t{4}}, {"sequence", int64_t{6}}});
  for (int64_t bad : {int64_t{-1}, int64_t{11}, int64_t{1} << 40}) {
    const absl::Status status = RunStatus(*layer, {at::tensor({int64_t{1}, bad}, at::kLong).view({1, 2})});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE");
    EXPECT_EQ(ValuesOf(status)["field"], "inputs[tokens]");
    EXPECT_EQ(ValuesOf(status)["value"], std::to_string(bad));
  }
  const absl::Status late = RunStatus(*layer, {at::zeros({1, 7}, at::kLong)});
  EXPECT_EQ(ValuesOf(late)["field"], "inputs[tokens].shape[1]");
  EXPECT_THAT(std::string(late.message()), HasSubstr("[1, 6]"));
  EXPECT_FALSE(RunStatus(*layer, {at::zeros({1, 0}, at::kLong)}).ok());
  EXPECT_FALSE(RunStatus(*layer, {at::zeros({3}, at::kLong)}).ok());
  EXPECT_FALSE(RunStatus(*layer, {at::zeros({1, 3})}).ok());
  EXPECT_TRUE(RunStatus(*layer, {at::zeros({0, 3}, at::kLong)}).ok());
}

// Causal attention and the feed-forward net, written out.
TEST(GptBlockLayer, IsAPreNormDecoderBlock) {
  constexpr int64_t kRows = 2, kLength = 5, kWidth = 8, kHeads = 2;
  const auto layer = Make("gpt_block", {{"width", kWidth}, {"heads", kHeads}});
  Randomize(*layer);
  const at::Tensor input = Input({kRows, kLength, kWidth});
  const at::Tensor x = input.to(at::kDouble);

  const at::Tensor normed =
      Normed(x, Parameter(*layer, "attention.norm.weight"), Parameter(*layer, "attention.norm.bias"));
  const at::Tensor parts = Linear(normed, *layer, "attention.query_key_value");
  const at::Tensor future = at::ones({kLength, kLength}, at::kBool).triu(1);
  std::vector<at::Tensor> heads;
  for (int64_t head = 0; head < kHeads; ++head) {
    const int64_t size = kWidth / kHeads;
    const at::Tensor query = parts.narrow(-1, head * size, size);
    const at::Tensor key = parts.narrow(-1, kWidth + head * size, size);
    const at::Tensor value = parts.narrow(-1, 2 * kWidth + head * size, size);
    const at::Tensor scores = at::matmul(query, key.transpose(1, 2)) / std::sqrt(static_cast<double>(size));
    heads.push_back(at::matmul(scores.masked_fill(future, -INFINITY).softmax(-1), value));
  }
  const at::Tensor middle = x + Linear(at::cat(heads, -1), *layer, "attention.projection");
  const at::Tensor fed =
      Normed(middle, Parameter(*layer, "feed_forward.norm.weight"), Parameter(*layer, "feed_forward.norm.bias"));
  const at::Tensor want =
      middle + Linear(Gelu(Linear(fed, *layer, "feed_forward.expand")), *layer, "feed_forward.contract");
  ExpectClose(Apply(*layer, input), want, 5e-5);
}

TEST(GptBlockLayer, DropsOnBothBranchesWithDrawsOfTheirOwn) {
  const auto layer = Make("gpt_block", {{"width", int64_t{8}}, {"heads", int64_t{2}}, {"dropout", 1.0}});
  const at::Tensor input = Input({1, 3, 8});
  EXPECT_TRUE(Apply(*layer, input, /*training=*/true).equal(input)) << "only the residual is left";
  const auto half = Make("gpt_block", {{"width", int64_t{8}}, {"heads", int64_t{2}}, {"dropout", 0.5}});
  EXPECT_TRUE(Apply(*half, input, true).equal(Apply(*half, input, true)));
  EXPECT_FALSE(Apply(*half, input, true).equal(Apply(*half, input, false)));
}

TEST(GptHeadLayer, GivesOneLogitPerSymbol) {
  const auto layer = Make("gpt_head", {{"width", int64_t{8}}, {"vocab", int64_t{13}}});
  Randomize(*layer);
  const at::Tensor input = Input({2, 3, 8});
  const at::Tensor normed =
      Normed(input.to(at::kDouble), Parameter(*layer, "norm.weight"), Parameter(*layer, "norm.bias"));
  ExpectClose(Apply(*layer, input), at::matmul(normed, Parameter(*layer, "weight").t()));
}

TEST(Layers, RefuseInputsThatDoNotFitThem) {
  for (const auto& [kind, options] :
       std::vector<std::pair<std::string, OptionMap>>{{"linear", {{"in", int64_t{8}}, {"out", int64_t{8}}}},
                                                      {"mlp_block", {{"width", int64_t{8}}}},
                                                      {"layer_norm", {{"width", int64_t{8}}}},
                                                      {"gpt_block", {{"width", int64_t{8}}}},
                                                      {"gpt_head", {{"width", int64_t{8}}}}}) {
    const auto layer = Make(kind, options);
    for (const Tensors& wrong :
         {Tensors{at::zeros({2, 3, 7})}, Tensors{at::zeros({8})}, Tensors{},
          Tensors{at::zeros({2, 3, 8}), at::zeros({2, 3, 8})}, Tensors{at::zeros({2, 3, 8}, at::kDouble)}}) {
      const absl::Status status = RunStatus(*layer, wrong);
      EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE") << kind << " " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(kind));
    }
    EXPECT_TRUE(RunStatus(*layer, {at::zeros({2, 3, 8})}).ok()) << kind;
  }
}

TEST(Layers, GiveEveryParameterAGradient) {
  for (const auto& [kind, options] :
       std::vector<std::pair<std::string, OptionMap>>{{"linear", {{"in", int64_t{8}}, {"out", int64_t{8}}}},
                                                      {"mlp_block", {{"width", int64_t{8}}, {"dropout", 0.1}}},
                                                      {"layer_norm", {{"width", int64_t{8}}}},
                                                      {"gpt_block", {{"width", int64_t{8}}, {"dropout", 0.1}}},
                                                      {"gpt_head", {{"width", int64_t{8}}}}}) {
    const auto layer = Make(kind, options);
    Apply(*layer, Input({2, 3, 8}), /*training=*/true).square().sum().backward();
    for (const NamedTensor& parameter : layer->parameters()) {
      EXPECT_TRUE(parameter.tensor.is_leaf() && parameter.tensor.requires_grad()) << parameter.name;
      EXPECT_TRUE(parameter.tensor.grad().defined()) << kind << " " << parameter.name;
    }
  }
}

TEST(Layers, NameTheirParametersInOrder) {
  const auto names = [](const Layer& layer) {
    std::vector<std::string> all;
    for (const NamedTensor& parameter : layer.parameters()) all.push_back(parameter.name);
    return all;
  };
  EXPECT_THAT(names(*Make("gpt_embedding", {})), ElementsAre("token.weight", "position.weight"));
  EXPECT_THAT(names(*Make("gpt_head", {})), ElementsAre("norm.weight", "norm.bias", "weight"));
  EXPECT_THAT(names(*Make("gpt_block", {})),
              ElementsAre("attention.norm.weight", "attention.norm.bias", "attention.query_key_value.weight",
                          "attention.query_key_value.bias", "attention.projection.weight", "attention.projection.bias",
                          "feed_forward.norm.weight", "feed_forward.norm.bias", "feed_forward.expand.weight",
                          "feed_forward.expand.bias", "feed_forward.contract.weight", "feed_forward.contract.bias"));
}

}  // namespace
}  // namespace penstock
