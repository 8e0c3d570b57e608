#include "engine/tensor/batch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Batch, AValueByItself) {
  const at::Tensor a = at::ones({2});
  Batch batch(a);
  EXPECT_TRUE(batch.atomic());
  EXPECT_EQ(batch.size(), 1u);
  EXPECT_TRUE(batch.value()->tensor()->equal(a));
  EXPECT_TRUE(batch.At(0).ok());
  EXPECT_EQ(batch.At(1).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(Message(batch.At(1).status()), HasSubstr("atomic batch allows index 0 only"));
  EXPECT_THAT(Message(batch.At(-1).status()), HasSubstr("atomic batch allows index 0 only"));
  EXPECT_TRUE(batch.Set(0, at::zeros({2})).ok());
  EXPECT_TRUE(batch.TensorAt(0).equal(at::zeros({2})));
  EXPECT_THAT(Message(batch.Set(1, a)), HasSubstr("atomic batch allows index 0 only"));
  const absl::Status two = batch.ReplaceAll({a, a});
  EXPECT_EQ(two.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(Message(two), HasSubstr("atomic batch cannot be replaced with multiple tensors"));
  EXPECT_TRUE(batch.ReplaceAll({a}).ok());
  EXPECT_TRUE(batch.FirstTensor()->equal(a));
}

TEST(Batch, ATuple) {
  const at::Tensor a = at::ones({2});
  Batch batch = Batch::Tuple({Value(3), a, at::zeros({1})});
  EXPECT_FALSE(batch.atomic());
  EXPECT_EQ(batch.value().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(batch.value().status()), HasSubstr("not atomic batch"));
  EXPECT_EQ(batch.size(), 3u);
  EXPECT_TRUE(batch.At(-1)->tensor()->equal(at::zeros({1}))) << "the last one";
  EXPECT_TRUE(batch.At(-2)->tensor()->equal(a));
  EXPECT_FALSE(batch.At(-3)->is_tensor()) << "the first one";
  EXPECT_FALSE(batch.At(3).ok());
  EXPECT_FALSE(batch.At(-4).ok());
  EXPECT_TRUE(batch.FirstTensor()->equal(a)) << "the first tensor, not the first value";
  EXPECT_TRUE(batch.ReplaceAll({a}).ok());
  EXPECT_EQ(batch.size(), 1u);
  EXPECT_FALSE(batch.atomic()) << "a tuple of one stays one";
  int count = 0;
  for (const Value& value : Batch::Tuple({a, a})) count += value.is_tensor();
  EXPECT_EQ(count, 2);
}

TEST(Batch, ItemsAreOfATuple) {
  const absl::Status atomic = Batch(at::ones({2})).items().status();
  EXPECT_EQ(atomic.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(atomic.message(), "batch is atomic");
  auto items = Batch::Tuple({Value(at::ones({2})), Value(3)}).items();
  ASSERT_TRUE(items.ok()) << items.status();
  ASSERT_EQ(items->size(), 2);
  EXPECT_EQ(*(*items)[1].integer(), 3);
}

TEST(Batch, ThePositionOfTheFirstTensor) {
  EXPECT_EQ(*Batch(at::ones({2})).FirstTensorIndex(), 0);
  EXPECT_EQ(*Batch::Tuple({Value(3), Value(WholeTensor{at::ones({2})}), Value(at::ones({2}))}).FirstTensorIndex(), 2);
  const absl::Status none = Batch::Tuple({Value(3), Value("x")}).FirstTensorIndex().status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(none), "WRONG_TYPE");
  EXPECT_EQ(none.message(), "No tensor found! Got (int, str)");
}

TEST(Batch, WithoutATensor) {
  const absl::Status none = Batch::Tuple({Value(3), Value("x")}).FirstTensor().status();
  EXPECT_EQ(ReasonOf(none), "WRONG_TYPE");
  EXPECT_THAT(Message(none), HasSubstr("No tensors found in batch: (int, str)"));
  EXPECT_FALSE(Batch(Value(3)).HasTensor());
  EXPECT_FALSE(Batch::Tuple({Value::List({at::ones({1})})}).HasTensor()) << "one inside a list doesn't count";
}

TEST(Batch, CallsAFunctionAndWrapsItsResult) {
  const Batch doubled =
      Batch::Tuple({at::ones({2}), Value(3)}).Call([](const Batch& batch) { return Batch(batch.TensorAt(0) * 2); });
  EXPECT_TRUE(doubled.atomic());
  EXPECT_TRUE(doubled.TensorAt(0).equal(at::ones({2}) * 2));
}

TEST(Batch, MapsTensorsAndPassesTheRest) {
  const Batch batch = Batch::Tuple({at::ones({2}), Value(3), Value(WholeTensor{at::ones({1})}), Value()});
  const Batch mapped = batch.MapTensors([](const at::Tensor& tensor) { return tensor + 1; });
  EXPECT_TRUE(mapped.TensorAt(0).equal(at::ones({2}) + 1));
  EXPECT_EQ(*mapped[1].integer(), 3);
  EXPECT_TRUE(mapped[2].whole()->equal(at::ones({1}) + 1));
  EXPECT_TRUE(mapped[3].is_none());
  EXPECT_TRUE(batch.TensorAt(0).equal(at::ones({2}))) << "the batch itself is as it was";
}

TEST(Batch, ATensorWhereThereIsNone) {
  const Batch batch = Batch::Tuple({Value(3)});
  const absl::Status status = RunTorch([&] { (void)batch.TensorAt(0); });
  EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
  EXPECT_THAT(Message(status), HasSubstr("expected Tensor, but got int"));
  EXPECT_FALSE(RunTorch([&] { (void)batch.TensorAt(1); }).ok());
}

TEST(Value, KnowsWhatItHolds) {
  EXPECT_EQ(Value().TypeName(), "NoneType");
  EXPECT_EQ(Value(true).TypeName(), "bool");
  EXPECT_EQ(Value("x").TypeName(), "str") << "not a bool";
  EXPECT_EQ(Value(WholeTensor{at::ones({1})}).TypeName(), "NoChunk");
  EXPECT_FALSE(Value(WholeTensor{at::ones({1})}).is_tensor()) << "a whole tensor is not split";
  EXPECT_EQ(Value::Tuple({1, 2}).tuple()->size(), 2u);
  EXPECT_EQ(Value::Tuple({1, 2}).list(), nullptr);
  EXPECT_EQ(*Value::Dict({{"a", 1}}).dict()->at(0).second.integer(), 1);
  EXPECT_EQ(ByteSize(Batch::Tuple({at::ones({4}), Value(3), Value(WholeTensor{at::ones({2})})})), 24);
  EXPECT_EQ(ByteSize(Batch::Tuple({Value::Tuple({at::ones({3}), 1}), at::Tensor()})), 12) << "inside of a value, too";
}

}  // namespace
}  // namespace penstock
