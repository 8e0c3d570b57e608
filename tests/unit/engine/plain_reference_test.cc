// The reference judges the pipelines; here it is judged itself, against formulas and against what it must be equal to.

#include "tests/support/plain_reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/autograd/seeds.h"

namespace penstock::testing {
namespace {

PlainSpec MlpSpec() {
  PlainSpec spec;
  spec.model = {"mlp", {{"layers", int64_t{3}}, {"width", int64_t{6}}, {"dropout", 0.2}}, {}};
  spec.loss = {"mean_squared_error", {}};
  spec.optimizer.clip_norm = 0.5;
  spec.seed = 11;
  return spec;
}

PlainSpec GptSpec() {
  PlainSpec spec;
  spec.model = {
      "gpt", {{"blocks", int64_t{2}}, {"width", int64_t{16}}, {"sequence", int64_t{12}}, {"heads", int64_t{2}}}, {}};
  spec.loss = {"cross_entropy", {}};
  spec.seed = 12;
  return spec;
}

at::Tensor Normal(at::IntArrayRef shape, int which) {
  return at::empty(shape).normal_(0, 1, InitialGenerator(77, LayerIndex(which)));
}

void ExpectEqual(const NamedTensors& got, const NamedTensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].name, want[i].name);
    EXPECT_TRUE(got[i].tensor.equal(want[i].tensor)) << got[i].name;
  }
}

TEST(PlainReference, StartsAGptNearTheLogarithmOfItsVocabulary) {
  PlainSpec spec;
  spec.model = {"gpt", {{"blocks", int64_t{2}}}, {}};
  spec.loss = {"cross_entropy", {}};
  PlainReference plain(spec);
  const at::Tensor text = at::randint(0, 256, {2, 65}, InitialGenerator(1, LayerIndex(0)), at::kLong);
  EXPECT_NEAR(plain.Contribute({text.narrow(1, 0, 64)}, text.narrow(1, 1, 64), 2), std::log(256), 0.15);
}

TEST(PlainReference, LearnsARepeatingText) {
  PlainReference plain(GptSpec());
  const at::Tensor text = at::arange(13).remainder(5).repeat({4, 1});
  const double first = plain.TrainStep({text.narrow(1, 0, 12)}, text.narrow(1, 1, 12), 2).loss;
  double last = first;
  for (int i = 0; i < 150; ++i) last = plain.TrainStep({text.narrow(1, 0, 12)}, text.narrow(1, 1, 12), 2).loss;
  EXPECT_NEAR(first, std::log(256), 0.3);
  EXPECT_LT(last, 2.5);
  const at::Tensor next = plain.Infer({text.narrow(1, 0, 12)}, 3).at(0).argmax(-1);
  EXPECT_TRUE(next.equal(text.narrow(1, 1, 12)));
}

TEST(PlainReference, RepeatsBitForBit) {
  PlainReference one(MlpSpec()), two(MlpSpec());
  for (int i = 0; i < 3; ++i) {
    const auto a = one.TrainStep({Normal({7, 6}, i)}, Normal({7, 6}, 10 + i), 3);
    const auto b = two.TrainStep({Normal({7, 6}, i)}, Normal({7, 6}, 10 + i), 3);
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.gradient_norm, b.gradient_norm);
    EXPECT_TRUE(a.applied);
  }
  ExpectEqual(one.Parameters(), two.Parameters());
  ExpectEqual(one.OptimizerState(), two.OptimizerState());
  EXPECT_EQ(one.step(), 3);
}

TEST(PlainReference, GivesTheGradientOfTheWholeMiniBatchWithoutDropout) {
  PlainReference whole(GptSpec()), pieces(GptSpec());
  const at::Tensor text = at::randint(0, 256, {7, 13}, InitialGenerator(2, LayerIndex(0)), at::kLong);
  at::Tensor target = text.narrow(1, 1, 12).clone();
  target.narrow(0, 0, 2).fill_(-100);  // unequal counts: shares are of counted elements, not of rows
  target.narrow(0, 6, 1).narrow(1, 0, 5).fill_(-100);
  const double a = whole.Contribute({text.narrow(1, 0, 12)}, target, 1);
  const double b = pieces.Contribute({text.narrow(1, 0, 12)}, target, 4);
  EXPECT_NEAR(a, b, 1e-5);
  const NamedTensors want = whole.Gradients();
  const NamedTensors got = pieces.Gradients();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_LT((got[i].tensor - want[i].tensor).abs().max().item<double>(), 1e-6) << want[i].name;
  }
}

TEST(PlainReference, AddsContributionsUpToOneStep) {
  PlainReference one(MlpSpec()), several(MlpSpec());
  const at::Tensor input = Normal({8, 6}, 1);
  const at::Tensor target = Normal({8, 6}, 2);
  const auto whole = one.TrainStep({input}, target, 4);
  double loss = 0;
  for (int part = 0; part < 2; ++part) {
    loss += several.Contribute({input.narrow(0, 4 * part, 4)}, target.narrow(0, 4 * part, 4), 2, target.numel());
  }
  const auto step = several.Step();
  EXPECT_NEAR(loss, whole.loss, 1e-12);
  EXPECT_EQ(step.gradient_norm, whole.gradient_norm);
  ExpectEqual(several.Parameters(), one.Parameters());
}

TEST(PlainReference, TakesALossMadeElsewhere) {
  PlainReference one(MlpSpec()), two(MlpSpec());
  const at::Tensor input = Normal({4, 6}, 1);
  const at::Tensor target = Normal({4, 6}, 2);
  one.Contribute({input}, target, 2);
  const std::vector<Batch> outputs = two.Forward({input}, 2);
  for (size_t i = 0; i < outputs.size(); ++i) {
    at::mse_loss(outputs[i].TensorAt(0), target.narrow(0, 2 * static_cast<int64_t>(i), 2)).mul(0.5).backward();
  }
  ExpectEqual(two.Gradients(), one.Gradients());
}

TEST(PlainReference, DrawsDropoutByStepAndMicroBatch) {
  const PlainSpec spec = MlpSpec();
  PlainReference one(spec), two(spec);
  const at::Tensor input = Normal({1, 6}, 1).repeat({2, 1});
  const std::vector<Batch> outputs = one.Forward({input}, 2);
  EXPECT_FALSE(outputs[0].TensorAt(0).equal(outputs[1].TensorAt(0))) << "the same row, dropped differently";
  EXPECT_TRUE(two.Forward({input}, 2)[1].TensorAt(0).equal(outputs[1].TensorAt(0)));
  const at::Tensor inferred = one.Infer({input}, 2).at(0);
  EXPECT_TRUE(inferred[0].equal(inferred[1])) << "no dropout in inference";
  EXPECT_FALSE(inferred.requires_grad());
}

TEST(PlainReference, LeavesWeightsAloneWhereALossIsNotFinite) {
  PlainReference plain(MlpSpec());
  NamedTensors before;
  for (const NamedTensor& parameter : plain.Parameters())
    before.push_back({parameter.name, parameter.tensor.detach().clone()});
  at::Tensor target = Normal({4, 6}, 2);
  target[3][3] = std::numeric_limits<float>::quiet_NaN();
  const auto step = plain.TrainStep({Normal({4, 6}, 1)}, target, 2);
  EXPECT_FALSE(step.applied);
  EXPECT_TRUE(std::isnan(step.loss));
  ExpectEqual(plain.Parameters(), before);
  EXPECT_EQ(plain.step(), 0);
  EXPECT_TRUE(plain.TrainStep({Normal({4, 6}, 1)}, Normal({4, 6}, 2), 2).applied) << "the next one works";
}

TEST(PlainReference, ClipsToTheNorm) {
  PlainSpec spec = MlpSpec();
  spec.optimizer.name = "sgd";
  spec.optimizer.options = {{"learning_rate", 1.0}};
  spec.optimizer.clip_norm = 1e-3;
  PlainReference plain(spec);
  NamedTensors before;
  for (const NamedTensor& parameter : plain.Parameters())
    before.push_back({parameter.name, parameter.tensor.detach().clone()});
  const auto step = plain.TrainStep({Normal({4, 6}, 1)}, Normal({4, 6}, 2).mul(10), 2);
  ASSERT_GT(step.gradient_norm, 1e-3);
  double moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    moved += (plain.Parameters()[i].tensor.detach() - before[i].tensor).to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(moved), 1e-3, 2e-5);
}

}  // namespace
}  // namespace penstock::testing
