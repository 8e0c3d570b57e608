#include "engine/tensor/micro_batch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/conj.h>
#include <ATen/ops/imag.h>
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

TEST(MicroBatchRows, FollowsTheKnownTable) {
  for (const Split& split : KnownSplits()) {
    EXPECT_THAT(MicroBatchRows(split.rows, split.asked), ElementsAreArray(split.pieces))
        << split.rows << "/" << split.asked;
  }
}

TEST(MicroBatchRows, EqualsLibTorchsChunk) {
  for (int64_t rows = 0; rows <= 40; ++rows) {
    for (int asked = 1; asked <= 45; ++asked) {
      std::vector<int64_t> chunked;
      for (const at::Tensor& piece : at::zeros({rows, 2}).chunk(asked)) chunked.push_back(piece.size(0));
      EXPECT_EQ(MicroBatchRows(rows, asked), chunked) << rows << "/" << asked;
    }
  }
}

std::string Sentence(const absl::Status& status) { return std::string(status.message()); }

TEST(Scatter, MakesPiecesOfEqualLengthButTheLast) {
  const at::Tensor input = at::arange(6);
  const auto split = Scatter(NamedTensors{{"a", input}}, 4, "inputs");
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->rows, ElementsAreArray({2, 2, 2})) << "fewer pieces than asked for";
  EXPECT_TRUE(split->micro_batches[1].atomic());
  EXPECT_TRUE(split->micro_batches[1].TensorAt(0).equal(input.narrow(0, 2, 2)));
  EXPECT_EQ(split->micro_batches[1].TensorAt(0).data_ptr(), input[2].data_ptr()) << "pieces are views";
}

TEST(Scatter, SplitsTensorsAndHandsOnTheRest) {
  const at::Tensor whole = at::arange(5);
  NamedValues inputs = {{"a", at::arange(14).view({7, 2})},
                        {"b", at::arange(7, at::kFloat)},
                        {"n", 3},
                        {"none", Value()},
                        {"s", "text"},
                        {"l", Value::List({1, at::ones({2})})},
                        {"w", WholeTensor{whole}}};
  const auto split = Scatter(inputs, 4, "inputs");
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->rows, ElementsAreArray({2, 2, 2, 1}));
  for (const Batch& batch : split->micro_batches) {
    ASSERT_EQ(batch.size(), inputs.size());
    EXPECT_EQ(*batch[2].integer(), 3);
    EXPECT_TRUE(batch[3].is_none());
    EXPECT_EQ(*batch[4].text(), "text");
    EXPECT_EQ(batch[5].list(), inputs[5].value.list()) << "the same list, not a copy";
    EXPECT_EQ(batch[6].tensor()->data_ptr(), whole.data_ptr()) << "all of it, the same storage";
  }
  EXPECT_TRUE(split->micro_batches[3].TensorAt(1).equal(inputs[1].value.tensor()->narrow(0, 6, 1)));
}

TEST(Scatter, OnlyTheNumberOfPiecesMustAgree) {
  const auto agree = Scatter(NamedTensors{{"a", at::zeros({3, 1})}, {"b", at::zeros({6, 1})}}, 5, "inputs");
  ASSERT_TRUE(agree.ok()) << agree.status();
  ASSERT_EQ(agree->micro_batches.size(), 3u);
  EXPECT_EQ(agree->micro_batches[2].TensorAt(1).size(0), 2);
  const auto differ = Scatter(NamedTensors{{"a", at::zeros({3, 1})}, {"b", at::zeros({4, 1})}}, 5, "inputs");
  EXPECT_EQ(ReasonOf(differ.status()), "TENSOR_SIGNATURE");
  EXPECT_THAT(Sentence(differ.status()), HasSubstr("Found different number of chunks produced for inputs: 3 and 4"));
  EXPECT_EQ(ValuesOf(differ.status())["field"], "inputs[b].shape[0]");
}

// The ancestors' zip drops the longer one's tail in silence.
TEST(Scatter, NothingIsTruncated) {
  const auto split = Scatter(NamedTensors{{"a", at::zeros({2, 1})}, {"b", at::zeros({8, 1})}}, 4, "inputs");
  EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument) << "2 pieces and 4";
}

TEST(Scatter, RefusesInputsWithoutATensor) {
  const NamedValues none = {{"a", 5}, {"l", Value::List({at::ones({2})})}, {"w", WholeTensor{at::ones({2})}}};
  const absl::Status status = Scatter(none, 2, "inputs").status();
  EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Sentence(status), HasSubstr("inputs do not have any tensors: (int, list, NoChunk)"));
}

// Every micro-batch gets copies of them.
TEST(Scatter, BoundsTheValuesOfAllMicroBatches) {
  const Value list = Value::List(ValueList(1 << 18, Value(1)));
  NamedValues values = {{"x", at::ones({20, 1})}, {"list", list}};
  EXPECT_TRUE(Scatter(values, 4, "inputs").ok());
  const absl::Status five = Scatter(values, 5, "inputs").status();
  EXPECT_EQ(ReasonOf(five), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(ValuesOf(five)["field"], "inputs[list]");
  EXPECT_THAT(Sentence(five), HasSubstr("at most 1048576 values for all micro-batches, got 262144 for each of 5"));
  // All of a call together.
  values.push_back({"more", Value::Tuple({Value()})});
  EXPECT_EQ(ValuesOf(Scatter(values, 4, "inputs").status())["field"], "inputs[more]");
  // A long key counts, too.
  values = {{"x", at::ones({12, 1})}, {"dict", Value::Dict({{std::string(1 << 24, 'k'), Value()}})}};
  EXPECT_TRUE(Scatter(values, 3, "inputs").ok());
  EXPECT_EQ(ValuesOf(Scatter(values, 4, "inputs").status())["field"], "inputs[dict]");
}

TEST(Scatter, AnEmptyTupleHasNoTensorEither) {
  NamedValues empty;
  empty.tuple = true;
  EXPECT_THAT(Sentence(Scatter(empty, 2, "inputs").status()), HasSubstr("inputs do not have any tensors: ()"));
}

TEST(Scatter, NoRowsMakeEmptyPiecesAndScalarsNone) {
  const auto empty = Scatter(NamedTensors{{"a", at::zeros({0, 2})}}, 3, "inputs");
  ASSERT_TRUE(empty.ok());
  EXPECT_THAT(empty->rows, ElementsAreArray({0, 0, 0}));
  const absl::Status scalar = Scatter(NamedTensors{{"a", at::zeros({})}}, 1, "inputs").status();
  EXPECT_THAT(Sentence(scalar), HasSubstr("chunk expects at least a 1-dimensional tensor"));
  EXPECT_EQ(ValuesOf(scalar)["field"], "inputs[a].shape");
}

TEST(Scatter, RefusesNoMicroBatches) {
  for (int asked : {0, -1}) {
    const absl::Status none = Scatter(NamedTensors{{"a", at::zeros({2})}}, asked, "inputs").status();
    EXPECT_EQ(ReasonOf(none), "FIELD_INVALID");
    EXPECT_THAT(Sentence(none), HasSubstr("number of micro-batches must be a positive integer"));
    EXPECT_EQ(ValuesOf(none)["value"], std::to_string(asked));
  }
}

TEST(Gather, UndoesScatter) {
  const NamedTensors inputs = {{"a", at::arange(14).view({7, 2})}, {"b", at::arange(7, at::kFloat)}};
  for (int asked : {1, 3, 8}) {
    const auto joined = Gather(Scatter(inputs, asked, "inputs")->micro_batches, {"a", "b"});
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_FALSE(joined->atomic());
    EXPECT_TRUE(joined->TensorAt(0).equal(inputs[0].tensor));
    EXPECT_TRUE(joined->TensorAt(1).equal(inputs[1].tensor));
    EXPECT_EQ(WithNames(*joined, {"a", "b"})[1].name, "b");
  }
}

TEST(Gather, JoinsByPosition) {
  const auto atomic = Gather({Batch(at::zeros({2, 1})), Batch(at::zeros({4, 1}))}, {});
  ASSERT_TRUE(atomic.ok());
  EXPECT_TRUE(atomic->atomic());
  EXPECT_EQ(atomic->TensorAt(0).sizes(), at::IntArrayRef({6, 1}));
  const std::vector<Value> piece = {at::zeros({1, 2}), 5, "text", Value()};
  const auto mixed = Gather({Batch::Tuple(piece), Batch::Tuple(piece), Batch::Tuple(piece)}, {});
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->TensorAt(0).size(0), 3);
  ASSERT_NE((*mixed)[1].list(), nullptr) << "other values become a list, one per micro-batch";
  EXPECT_EQ((*mixed)[1].list()->size(), 3u);
  EXPECT_EQ(*(*mixed)[2].list()->at(2).text(), "text");
}

TEST(Gather, NoneComesBackAsAListOfNone) {
  const auto joined = Gather({Batch::Tuple({at::zeros({1}), Value()}), Batch::Tuple({at::zeros({1}), Value()})}, {});
  ASSERT_TRUE(joined.ok());
  ASSERT_NE((*joined)[1].list(), nullptr);
  EXPECT_EQ((*joined)[1].list()->size(), 2u);
  EXPECT_TRUE((*joined)[1].list()->at(1).is_none());
}

// Views of the same elements that read them with another sign.
TEST(Gather, NegativeAndConjugateViewsAreValuesOfTheirOwn) {
  const at::Tensor z = at::complex(at::ones({2}), at::ones({2}) * 2);
  const Value views = Value::Dict({{"z", Value(z)},
                                   {"conj", Value(at::conj(z))},
                                   {"imag", Value(at::imag(z))},
                                   {"imag_of_conj", Value(at::imag(at::conj(z)))}});
  const auto joined = Gather({Batch::Tuple({at::zeros({1}), views})}, {});
  ASSERT_TRUE(joined.ok()) << joined.status();
  const ValueDict& got = *(*joined)[1].list()->at(0).dict();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].second.tensor()->equal(*views.dict()->at(i).second.tensor())) << got[i].first;
  }
}

TEST(Gather, AWholeTensorComesBackOncePerMicroBatch) {
  const at::Tensor whole = at::arange(3);
  const NamedValues inputs = {{"a", at::zeros({4, 1})}, {"w", WholeTensor{whole}}};
  const auto joined = Gather(Scatter(inputs, 4, "inputs")->micro_batches, {});
  ASSERT_TRUE(joined.ok());
  EXPECT_TRUE(joined->TensorAt(1).equal(at::cat({whole, whole, whole, whole})));
}

TEST(Gather, ZeroDimensionalTensorsBecomeOneWithAnElementPerMicroBatch) {
  for (const int m : {1, 3}) {
    std::vector<Batch> micro_batches;
    for (int i = 0; i < m; ++i) micro_batches.emplace_back(at::full({}, i, at::kLong));
    const auto joined = Gather(micro_batches, {});
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_TRUE(joined->TensorAt(0).equal(at::arange(m)));
  }
}

TEST(Gather, ATupleOfOneStaysOne) {
  NamedValues one = {{"a", at::zeros({4, 1})}};
  EXPECT_TRUE(Scatter(one, 2, "inputs")->micro_batches[0].atomic());
  one.tuple = true;
  const auto split = Scatter(one, 2, "inputs");
  EXPECT_FALSE(split->micro_batches[0].atomic());
  EXPECT_FALSE(Gather(split->micro_batches, {})->atomic());
}

TEST(Gather, RefusesWhatDoesNotJoin) {
  const auto sizes = Gather({Batch(at::zeros({1, 3})), Batch(at::zeros({1, 4}))}, {"y"});
  EXPECT_THAT(Sentence(sizes.status()),
              HasSubstr("Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4 for tensor "
                        "number 1 in the list"));
  EXPECT_EQ(ValuesOf(sizes.status())["field"], "outputs[y]");
  const auto types = Gather({Batch(at::zeros({1})), Batch(Value(1))}, {"y"});
  EXPECT_EQ(ReasonOf(types.status()), "WRONG_TYPE");
  EXPECT_THAT(Sentence(types.status()), HasSubstr("Types for microbatch outputs do not match, found: Tensor and int"));
  const auto elements = Gather({Batch(at::zeros({1})), Batch(at::ones({1}, at::kLong))}, {"y"});
  EXPECT_THAT(Sentence(elements.status()), HasSubstr("Types for microbatch outputs do not match"));
  const auto ranks = Gather({Batch(at::zeros({})), Batch(at::zeros({1}))}, {"y"});
  EXPECT_THAT(Sentence(ranks.status()), HasSubstr("Types for microbatch outputs do not match"));
  EXPECT_FALSE(Gather({}, {"y"}).ok());
  EXPECT_FALSE(Gather({Batch(at::zeros({1})), Batch()}, {"y"}).ok());
}

TEST(Values, OnlyTensorsBecomeTensors) {
  for (const auto& [value, name] : std::vector<std::pair<Value, std::string>>{
           {42, "int"}, {"str", "str"}, {2.5, "float"}, {Value::List({}), "list"}, {Value(), "NoneType"}}) {
    const absl::Status status = ToTensors(NamedValues{{"x", value}}).status();
    EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
    EXPECT_THAT(Sentence(status), HasSubstr("expected Tensor, but got " + name));
  }
  EXPECT_TRUE(ToTensors(NamedValues{{"x", at::zeros({2})}}).ok());
}

TEST(ByteSize, CountsViewsAsCopies) {
  const at::Tensor whole = at::zeros({4, 2}, at::kLong);
  EXPECT_EQ(ByteSize(Tensors{whole, whole.narrow(0, 0, 1)}), 64 + 16);
  EXPECT_EQ(ByteSize(NamedTensors{{"a", whole}, {"b", at::zeros({}, at::kBool)}}), 65);
  EXPECT_EQ(ByteSize(Tensors{at::Tensor()}), 0);
}

}  // namespace
}  // namespace penstock
