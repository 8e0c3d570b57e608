// The two halves of a stage's backward against the whole one, bit for bit, for the models and all that a stage carries.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/exec/stage_chain.h"

namespace penstock {
namespace {

using testing::ChainGradients;
using testing::Halves;
using testing::StageChain;

void ExpectSame(const NamedTensors& split, const NamedTensors& whole, bool may_be_undefined) {
  ASSERT_EQ(split.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(split[i].name, whole[i].name);
    ASSERT_EQ(split[i].tensor.defined(), whole[i].tensor.defined()) << whole[i].name;
    if (!whole[i].tensor.defined()) {
      EXPECT_TRUE(may_be_undefined) << whole[i].name;
      continue;
    }
    EXPECT_TRUE(at::equal(split[i].tensor, whole[i].tensor)) << whole[i].name;
    EXPECT_EQ(split[i].tensor.strides(), whole[i].tensor.strides()) << whole[i].name;
  }
}

// Runs both ways of splitting against the fused backward, stored and checkpointed.
void ExpectHalvesEqualTheWhole(StageChain::Spec spec, const std::vector<at::Tensor>& inputs,
                               const std::vector<at::Tensor>& targets) {
  for (bool checkpoint : {false, true}) {
    spec.checkpoint = checkpoint;
    StageChain chain(spec);
    const ChainGradients whole = chain.Run(inputs, targets, Halves::kFused);
    ASSERT_FALSE(whole.parameters.empty());
    for (Halves halves : {Halves::kAdjacent, Halves::kOwed}) {
      SCOPED_TRACE(
          absl::StrCat(checkpoint ? "checkpointed " : "stored ", halves == Halves::kOwed ? "owed" : "adjacent"));
      const ChainGradients split = chain.Run(inputs, targets, halves);
      ExpectSame(split.inputs, whole.inputs, false);
      ExpectSame(split.parameters, whole.parameters, false);
    }
  }
}

ModelSpec Model(const std::string& name, OptionMap options) {
  ModelSpec model;
  model.name = name;
  model.options = std::move(options);
  return model;
}

ModelSpec Layers(std::vector<LayerSpec> layers) {
  ModelSpec model;
  model.layers = std::move(layers);
  return model;
}

const LossSpec kCrossEntropy = {"cross_entropy", {}};

at::Generator Seeded() { return at::make_generator<at::CPUGeneratorImpl>(3); }

std::vector<at::Tensor> Floats(std::vector<int64_t> shape, int count) {
  at::Generator generator = Seeded();
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(at::randn(shape, generator));
  return tensors;
}

std::vector<at::Tensor> Labels(std::vector<int64_t> shape, int64_t high, int count) {
  at::Generator generator = Seeded();
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(at::randint(high, shape, generator, at::kLong));
  return tensors;
}

const OptionMap kGpt = {{"vocab", int64_t{17}}, {"blocks", int64_t{4}},   {"width", int64_t{16}},
                        {"heads", int64_t{2}},  {"sequence", int64_t{8}}, {"dropout", 0.1}};

TEST(StageSplit, GptWithLossAndDropout) {
  StageChain::Spec spec{.model = Model("gpt", kGpt), .loss = kCrossEntropy};
  for (const std::vector<int>& cut : {std::vector<int>{0}, std::vector<int>{0, 2, 4}}) {
    spec.first_layers = cut;
    ExpectHalvesEqualTheWhole(spec, Labels({3, 8}, 17, 3), Labels({3, 8}, 17, 3));
  }
}

TEST(StageSplit, UnetWithSkipsPastStages) {
  StageChain::Spec spec{.model = Model("unet", {{"depth", int64_t{3}},
                                                {"convs", int64_t{2}},
                                                {"channels", int64_t{4}},
                                                {"in", int64_t{2}},
                                                {"image", int64_t{16}}}),
                        .input_gradients = true};
  const size_t layers = ExpandModel(spec.model)->size();
  for (int stages : {1, 2, 4}) {
    spec.first_layers.clear();
    for (int s = 0; s < stages; ++s) spec.first_layers.push_back(static_cast<int>(layers * s / stages));
    ExpectHalvesEqualTheWhole(spec, Floats({2, 2, 16, 16}, 2), {{}, {}});
  }
}

TEST(StageSplit, ResnetWithBatchNorm) {
  StageChain::Spec spec{.model = Model("resnet", {{"depth", int64_t{50}},
                                                  {"blocks1", int64_t{1}},
                                                  {"blocks2", int64_t{1}},
                                                  {"blocks3", int64_t{1}},
                                                  {"blocks4", int64_t{1}},
                                                  {"width", int64_t{4}},
                                                  {"classes", int64_t{5}},
                                                  {"image", int64_t{32}}}),
                        .first_layers = {0, 3},
                        .loss = kCrossEntropy};
  ExpectHalvesEqualTheWhole(spec, Floats({2, 3, 32, 32}, 2), Labels({2}, 5, 2));
}

TEST(StageSplit, AmoebanetOfTuples) {
  StageChain::Spec spec{
      .model =
          Model("amoebanet",
                {{"layers", int64_t{3}}, {"filters", int64_t{8}}, {"classes", int64_t{5}}, {"image", int64_t{32}}}),
      .loss = kCrossEntropy};
  const int layers = static_cast<int>(ExpandModel(spec.model)->size());
  spec.first_layers = {0, layers / 3, 2 * layers / 3};
  ExpectHalvesEqualTheWhole(spec, Floats({2, 3, 32, 32}, 2), Labels({2}, 5, 2));
}

TEST(StageSplit, StagesWithoutParametersHaveAnEmptyWeightHalf) {
  StageChain::Spec spec{.model = Layers({{"linear", "a", {{"in", int64_t{4}}, {"out", int64_t{4}}}},
                                         {"gelu", "b", {}},
                                         {"identity", "c", {}},
                                         {"linear", "d", {{"in", int64_t{4}}, {"out", int64_t{4}}}}}),
                        .first_layers = {0, 1, 2, 3}};
  ExpectHalvesEqualTheWhole(spec, Floats({3, 4}, 2), {{}, {}});
}

TEST(StageSplit, FirstStageWithoutInputGradientsLeavesAllToTheWeightHalf) {
  StageChain chain({.model = Model("mlp", {{"layers", int64_t{4}}, {"width", int64_t{8}}}), .first_layers = {0, 2}});
  const std::vector<at::Tensor> inputs = Floats({3, 8}, 1);
  chain.Forward(inputs, {});
  Pass& last = chain.passes()[1][0];
  Pass& first = chain.passes()[0][0];
  const InputGradients back = chain.stage(1).InputGradient(last, Batch(at::ones_like(last.outputs.TensorAt(0))));
  ASSERT_TRUE(back.inputs[0].is_tensor());
  const InputGradients nothing = chain.stage(0).InputGradient(first, back.inputs);
  EXPECT_FALSE(nothing.inputs[0].is_tensor());
  for (const NamedTensor& parameter : chain.stage(0).parameters()) EXPECT_FALSE(parameter.tensor.grad().defined());
  chain.stage(0).WeightGradient(first);
  for (const NamedTensor& parameter : chain.stage(0).parameters()) EXPECT_TRUE(parameter.tensor.grad().defined());
  EXPECT_EQ(first.split, nullptr);
}

TEST(StageSplit, NoGradientArrivingIsNothingOwed) {
  StageChain chain({.model = Model("mlp", {{"layers", int64_t{2}}, {"width", int64_t{8}}}), .input_gradients = true});
  chain.Forward(Floats({3, 8}, 1), {});
  Pass& pass = chain.passes()[0][0];
  const InputGradients back = chain.stage(0).InputGradient(pass, Batch::Tuple({Value()}));
  EXPECT_FALSE(back.inputs[0].is_tensor());
  chain.stage(0).WeightGradient(pass);
  for (const NamedTensor& parameter : chain.stage(0).parameters()) EXPECT_FALSE(parameter.tensor.grad().defined());
}

}  // namespace
}  // namespace penstock
