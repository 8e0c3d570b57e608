#include "engine/optim/gradient_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace penstock {
namespace {

NamedTensor WithGradient(const std::string& name, const at::Tensor& gradient) {
  at::Tensor parameter = at::zeros_like(gradient).requires_grad_(true);
  parameter.mutable_grad() = gradient;
  return {name, parameter};
}

TEST(GradientNorms, AreOnePerGradientInOrder) {
  const NamedTensors parameters = {WithGradient("a", at::tensor({3.0f, 4.0f})),
                                   {"b", at::zeros({2}).requires_grad_(true)},
                                   WithGradient("c", at::full({2, 2}, -1.0f))};
  const std::vector<at::Tensor> norms = GradientNorms(parameters);
  ASSERT_EQ(norms.size(), 2u);
  EXPECT_EQ(norms[0].scalar_type(), at::kFloat);
  EXPECT_EQ(norms[0].dim(), 0);
  EXPECT_EQ(norms[0].item<double>(), 5);
  EXPECT_EQ(norms[1].item<double>(), 2);
  EXPECT_FLOAT_EQ(GlobalNorm(norms), std::sqrt(29.0));
}

TEST(GlobalNorm, IsZeroForNothingAndTellsNonFiniteGradients) {
  EXPECT_EQ(GlobalNorm({}), 0);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_FALSE(std::isfinite(GlobalNorm(GradientNorms({WithGradient("a", at::tensor({1.0f, bad}))}))));
  }
}

TEST(GlobalNorm, DoesNotDependOnHowTheNormsWereCollected) {
  NamedTensors all;
  for (int i = 1; i < 40; ++i) all.push_back(WithGradient("p", at::full({i, 7}, 0.1f * static_cast<float>(i))));
  std::vector<at::Tensor> joined;
  for (const NamedTensor& one : all) joined.push_back(GradientNorms({one}).at(0));
  EXPECT_EQ(GlobalNorm(GradientNorms(all)), GlobalNorm(joined));
}

TEST(ClipScale, ShrinksOnlyWhatIsTooLong) {
  EXPECT_EQ(ClipScale(10, 0), 1);
  EXPECT_EQ(ClipScale(0.5, 1), 1);
  EXPECT_EQ(ClipScale(0, 1), 1);
  EXPECT_NEAR(ClipScale(10, 1), 0.1, 1e-6);
}

}  // namespace
}  // namespace penstock
