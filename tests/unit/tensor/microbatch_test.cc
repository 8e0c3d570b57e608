#include "engine/tensor/microbatch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

struct Split {
  int64_t rows;
  int asked;
  std::vector<int64_t> pieces;
};

// The table of the systems that came before.
const std::vector<Split>& KnownSplits() {
  static const auto* const splits = new std::vector<Split>{
      {7, 4, {2, 2, 2, 1}},  {6, 4, {2, 2, 2}},     {9, 8, {2, 2, 2, 2, 1}}, {2, 4, {1, 1}},
      {10, 4, {3, 3, 3, 1}}, {3, 5, {1, 1, 1}},     {6, 5, {2, 2, 2}},       {4, 5, {1, 1, 1, 1}},
      {5, 4, {2, 2, 1}},     {12, 5, {3, 3, 3, 3}}, {0, 3, {0, 0, 0}},       {5, 1, {5}},
  };
  return *splits;
}

TEST(MicrobatchRows, FollowsTheKnownTable) {
  for (const Split& split : KnownSplits()) {
    EXPECT_THAT(MicrobatchRows(split.rows, split.asked), ElementsAreArray(split.pieces))
        << split.rows << "/" << split.asked;
  }
}

TEST(MicrobatchRows, EqualsLibTorchsChunk) {
  for (int64_t rows = 0; rows <= 40; ++rows) {
    for (int asked = 1; asked <= 45; ++asked) {
      std::vector<int64_t> chunked;
      for (const at::Tensor& piece : at::zeros({rows, 2}).chunk(asked)) chunked.push_back(piece.size(0));
      EXPECT_EQ(MicrobatchRows(rows, asked), chunked) << rows << "/" << asked;
    }
  }
}

TEST(Scatter, SplitsSeveralTensorsAlike) {
  const NamedTensors inputs = {{"a", at::arange(14).view({7, 2})}, {"b", at::arange(7, at::kFloat)}};
  const auto pieces = Scatter(inputs, 4, "inputs");
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  ASSERT_EQ(pieces->size(), 4u);
  EXPECT_TRUE((*pieces)[1][0].equal(inputs[0].tensor.narrow(0, 2, 2)));
  EXPECT_TRUE((*pieces)[3][1].equal(inputs[1].tensor.narrow(0, 6, 1)));
  EXPECT_EQ((*pieces)[1][0].data_ptr(), inputs[0].tensor[2].data_ptr()) << "pieces are views";
}

TEST(Scatter, RefusesUnequalRowsNamingThem) {
  const auto pieces = Scatter({{"a", at::zeros({3, 1})}, {"b", at::zeros({6, 1})}}, 5, "inputs");
  ASSERT_EQ(ReasonOf(pieces.status()), "TENSOR_SIGNATURE");
  EXPECT_EQ(ValuesOf(pieces.status())["field"], "inputs[b].shape[0]");
  EXPECT_EQ(ValuesOf(pieces.status())["value"], "6");
}

TEST(Scatter, RefusesScalarsNoTensorsAndNoMicrobatches) {
  const auto scalar = Scatter({{"a", at::zeros({})}}, 1, "inputs");
  EXPECT_EQ(ValuesOf(scalar.status())["field"], "inputs[a].shape");
  EXPECT_EQ(ReasonOf(Scatter({}, 1, "inputs").status()), "TENSOR_SIGNATURE");
  for (int asked : {0, -1}) {
    const auto none = Scatter({{"a", at::zeros({2})}}, asked, "inputs");
    EXPECT_EQ(ReasonOf(none.status()), "FIELD_INVALID");
    EXPECT_EQ(ValuesOf(none.status())["value"], std::to_string(asked));
  }
}

TEST(Gather, UndoesScatter) {
  const NamedTensors inputs = {{"a", at::arange(14).view({7, 2})}, {"b", at::arange(7, at::kFloat)}};
  for (int asked : {1, 3, 8}) {
    const auto joined = Gather(*Scatter(inputs, asked, "inputs"), {"a", "b"});
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE((*joined)[0].tensor.equal(inputs[0].tensor));
    EXPECT_TRUE((*joined)[1].tensor.equal(inputs[1].tensor));
    EXPECT_EQ((*joined)[1].name, "b");
  }
}

TEST(Gather, RefusesWhatDoesNotJoin) {
  const auto sizes = Gather({{at::zeros({1, 3})}, {at::zeros({1, 4})}}, {"y"});
  EXPECT_THAT(std::string(sizes.status().message()),
              HasSubstr("Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4 for tensor "
                        "number 1 in the list"));
  EXPECT_EQ(ValuesOf(sizes.status())["field"], "outputs[y]");
  const auto types = Gather({{at::zeros({1})}, {at::ones({1}, at::kLong)}}, {"y"});
  EXPECT_THAT(std::string(types.status().message()), HasSubstr("Types for microbatch outputs do not match"));
  const auto scalar = Gather({{at::zeros({})}}, {"y"});
  EXPECT_THAT(std::string(scalar.status().message()),
              HasSubstr("zero-dimensional tensor (at position 0) cannot be concatenated"));
  EXPECT_FALSE(Gather({}, {"y"}).ok());
  EXPECT_FALSE(Gather({{at::zeros({1})}, {}}, {"y"}).ok());
}

TEST(ByteSize, CountsViewsAsCopies) {
  const at::Tensor whole = at::zeros({4, 2}, at::kLong);
  EXPECT_EQ(ByteSize(Tensors{whole, whole.narrow(0, 0, 1)}), 64 + 16);
  EXPECT_EQ(ByteSize(NamedTensors{{"a", whole}, {"b", at::zeros({}, at::kBool)}}), 65);
  EXPECT_EQ(ByteSize(Tensors{at::Tensor()}), 0);
}

}  // namespace
}  // namespace penstock
