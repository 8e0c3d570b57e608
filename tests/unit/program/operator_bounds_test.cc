// Indices and labels that an accelerator would take on trust.

#include "engine/program/operator_bounds.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "tests/unit/program/program_runner.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

at::Tensor Indices(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }
at::Tensor Table() { return at::zeros({3, 4}); }

absl::Status Check(const std::string& name, const std::vector<std::pair<std::string, c10::IValue>>& arguments) {
  std::vector<std::string> names;
  std::vector<c10::IValue> values;
  for (const auto& [argument, value] : arguments) {
    names.push_back(argument);
    values.push_back(value);
  }
  const BoundsCheck check = BoundsOfOperator(name);
  EXPECT_NE(check, nullptr) << name;
  return RunTorch([&] { check({names, values}); });
}

c10::IValue List(const std::vector<std::optional<at::Tensor>>& tensors) {
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& tensor : tensors) list.push_back(tensor);
  return list;
}

void ExpectOutside(const absl::Status& status, const std::string& sentence) {
  EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
}

TEST(OperatorBounds, IndicesAlongADimension) {
  for (const char* name : {"aten::gather", "aten::index_select", "aten::index_add", "aten::index_copy_",
                           "aten::scatter", "aten::scatter_add", "aten::scatter_reduce"}) {
    SCOPED_TRACE(name);
    const auto with = [&](int64_t dim, std::vector<int64_t> index) {
      return Check(name, {{"self", Table()}, {"dim", dim}, {"index", Indices(std::move(index))}});
    };
    EXPECT_TRUE(with(0, {0, 2}).ok());
    EXPECT_TRUE(with(-1, {3}).ok());
    EXPECT_TRUE(with(0, {}).ok());
    ExpectOutside(with(0, {0, 3}), "index: must lie in [0, 2], got 3");
    ExpectOutside(with(1, {-1, 4}), "index: must lie in [0, 3], got -1");
  }
}

TEST(OperatorBounds, AMaskStandsForAsManyDimensionsAsItHas) {
  const auto with = [](int64_t index) {
    return Check("aten::index",
                 {{"self", at::zeros({2, 3, 4})}, {"indices", List({at::ones({2, 3}, at::kBool), Indices({index})})}});
  };
  EXPECT_TRUE(with(3).ok()) << with(3);
  ExpectOutside(with(4), "indices[1]: must lie in [-4, 3], got 4");
}

TEST(OperatorBounds, IndicesThatMayCountFromTheEnd) {
  const auto fill = [](int64_t index) {
    return Check("aten::index_fill", {{"self", Table()}, {"dim", 0}, {"index", Indices({index})}});
  };
  EXPECT_TRUE(fill(-3).ok());
  ExpectOutside(fill(-4), "index: must lie in [-3, 2], got -4");
  ExpectOutside(Check("aten::take", {{"self", Table()}, {"index", Indices({12})}}), "must lie in [-12, 11], got 12");
  const auto choose = [](const char* name, const std::vector<std::optional<at::Tensor>>& indices) {
    return Check(name, {{"self", Table()}, {"indices", List(indices)}});
  };
  for (const char* name : {"aten::index", "aten::index_put", "aten::index_put_"}) {
    EXPECT_TRUE(choose(name, {Indices({-3, 2}), Indices({0, -4})}).ok());
    EXPECT_TRUE(choose(name, {at::ones({3, 4}, at::kBool)}).ok());
    ExpectOutside(choose(name, {std::nullopt, Indices({4})}), "indices[1]: must lie in [-4, 3], got 4");
  }
}

TEST(OperatorBounds, RowsOfAnEmbeddingAndPlacesOfAOneHotVector) {
  const auto look_up = [](int64_t row) {
    return Check("aten::embedding", {{"weight", Table()}, {"indices", Indices({row})}});
  };
  EXPECT_TRUE(look_up(2).ok());
  ExpectOutside(look_up(3), "indices: must lie in [0, 2], got 3");
  EXPECT_TRUE(Check("aten::one_hot", {{"self", Indices({1})}, {"num_classes", -1}}).ok());
  ExpectOutside(Check("aten::one_hot", {{"self", Indices({5})}, {"num_classes", 5}}), "must lie in [0, 4], got 5");
}

TEST(OperatorBounds, LabelsOfLosses) {
  for (const char* name : {"aten::cross_entropy_loss", "aten::nll_loss", "aten::nll_loss_nd"}) {
    const auto with = [&](std::vector<int64_t> labels) {
      return Check(name, {{"self", Table()}, {"target", Indices(std::move(labels))}, {"ignore_index", -100}});
    };
    EXPECT_TRUE(with({0, 3, -100}).ok());
    EXPECT_TRUE(with({-100, -100, -100}).ok());
    ExpectOutside(with({0, 4, -100}), "target: must lie in [0, 3], got 4");
    ExpectOutside(with({0, -1, -100}), "target: must lie in [0, 3], got -1");
  }
  EXPECT_TRUE(Check("aten::cross_entropy_loss", {{"self", Table()}, {"target", Table()}}).ok()) << "probabilities";
}

TEST(OperatorBounds, NumbersThatMustBeProbabilities) {
  const at::Tensor nan = at::full({2}, std::numeric_limits<double>::quiet_NaN());
  for (const at::Tensor& bad : {at::full({2}, 1.5), at::full({2}, -0.5), nan}) {
    ExpectOutside(Check("aten::bernoulli", {{"self", bad}}), "self: must lie in [0, 1]");
    ExpectOutside(Check("aten::binary_cross_entropy", {{"self", bad}, {"target", at::ones({2})}}), "self: must lie");
    EXPECT_TRUE(Check("aten::bernoulli", {{"self", bad}, {"p", 0.5}}).ok()) << "of which only the shape counts";
  }
  EXPECT_TRUE(Check("aten::multinomial", {{"self", at::full({2}, 7.0)}}).ok());
  ExpectOutside(Check("aten::multinomial", {{"self", at::full({2}, -7.0)}}), "must lie in [0, ");
}

// Each ends the process where it is not refused.
TEST(OperatorBounds, ADivisionThatHasNoResult) {
  for (const at::ScalarType type : {at::kInt, at::kLong}) {
    const int64_t least = type == at::kInt ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
    const at::Tensor self = at::full({2}, least, at::TensorOptions(type));
    const at::Tensor minus = at::full({2}, -1, at::TensorOptions(type));
    for (const char* name : {"aten::div", "aten::div_", "aten::divide"}) {
      SCOPED_TRACE(name);
      const auto with = [&](const at::Tensor& a, const c10::IValue& b, const char* mode) {
        return Check(name, {{"self", a}, {"other", b}, {"rounding_mode", c10::IValue(std::string(mode))}});
      };
      ExpectOutside(with(self, minus, "trunc"), absl::StrCat("other: must not be -1 where self is ", least));
      ExpectOutside(with(self, int64_t{-1}, "trunc"), "other: must not be -1");
      EXPECT_TRUE(with(self, minus, "floor").ok());
      EXPECT_TRUE(with(self, int64_t{2}, "trunc").ok());
      EXPECT_TRUE(with(self + 1, minus, "trunc").ok());
      EXPECT_TRUE(with(self.to(at::kFloat), minus, "trunc").ok());
    }
  }
}

TEST(OperatorBounds, ScalesThatLeaveNothing) {
  const at::Tensor image = at::zeros({1, 1, 4, 8});
  for (const char* name : {"aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa", "aten::upsample_nearest2d",
                           "aten::upsample_bilinear2d", "aten::upsample_bicubic2d"}) {
    SCOPED_TRACE(name);
    const auto with = [&](const c10::IValue& high, const c10::IValue& wide) {
      return Check(name, {{"self", image}, {"scales_h", high}, {"scales_w", wide}});
    };
    EXPECT_TRUE(with(0.25, 0.125).ok());
    EXPECT_TRUE(with({}, 3.0).ok());
    ExpectOutside(with(1e-12, 1.0), "scales_h: must leave an element of 4, got 1e-12");
    ExpectOutside(with(1.0, 1e-12), "scales_w: must leave an element of 8, got 1e-12");
  }
  ExpectOutside(Check("aten::upsample_nearest1d", {{"self", at::zeros({1, 1, 4})}, {"scales", 1e-12}}), "scales: ");
  ExpectOutside(Check("aten::upsample_nearest3d", {{"self", at::zeros({1, 1, 2, 2, 2})}, {"scales_d", 1e-12}}),
                "scales_d: ");
}

TEST(OperatorBounds, HeadsThatSharedOnesAreDividedBy) {
  const auto with = [](int64_t heads, bool shared) {
    const at::Tensor keys = at::zeros({1, heads, 3, 2});
    return Check("aten::scaled_dot_product_attention",
                 {{"query", at::zeros({1, 4, 3, 2})}, {"key", keys}, {"value", keys}, {"enable_gqa", shared}});
  };
  EXPECT_TRUE(with(2, true).ok());
  EXPECT_TRUE(with(0, false).ok());
  ExpectOutside(with(0, true), "key: must have heads, got 0");
}

TEST(OperatorBounds, AProgramRefusesAnIndexBeforeItsOperatorRuns) {
  testing::ProgramRunner runner("language.pt2");
  const at::Tensor mask = at::ones({1, 3}, at::kLong);
  const auto run = [&](std::vector<int64_t> ids) {
    return RunTorch([&] { runner.Forward({Indices(std::move(ids)).view({1, 3}), mask}, {}); });
  };
  EXPECT_TRUE(run({0, 5, 10}).ok());
  const absl::Status refused = run({0, 11, 10});
  ExpectOutside(
      refused,
      "exported program node embedding (torch.ops.aten.embedding.default): indices: must lie in [0, 10], got 11");
}

}  // namespace
}  // namespace penstock
