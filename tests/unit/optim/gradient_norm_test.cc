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

// As clip_grad_norm_ would compute it in float32: bf16 has 8 bits to round to, and the norm of these fp16 gradients is
// above their largest number, 65504.
TEST(GradientNorms, OfGradientsOf16BitsAreFloat32) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor gradient = at::full({100, 100}, 999.0f).to(type);
    const at::Tensor norm = GradientNorms({WithGradient("a", gradient)}).at(0);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    EXPECT_EQ(norm.item<float>(), at::linalg_vector_norm(gradient.to(at::kFloat)).item<float>()) << type;
    const at::Tensor wide = at::full({}, 3.0f);
    EXPECT_EQ(GlobalNorm({norm, wide}), at::linalg_vector_norm(at::stack({norm, wide})).item<double>());
  }
  const NamedTensors mixed = {WithGradient("a", at::tensor({3.0}, at::kDouble)),
                              WithGradient("b", at::tensor({4.0f}).to(at::kBFloat16))};
  EXPECT_EQ(GlobalNorm(GradientNorms(mixed)), 5);
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
