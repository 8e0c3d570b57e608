#include "engine/transport/tensor_message.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/error.h"
#include "engine/tensor/codec.h"
#include "engine/transport/packed_bytes.h"

namespace penstock {
namespace {

const MessageKey kKey{.run = int64_t{1} << 40, .kind = MessageKind::kGradient, .stage = 3, .micro_batch = 5, .peer = 1};

// Over the wire: the bytes of the payload go to their places.
absl::StatusOr<DecodedMessage> Carried(const EncodedMessage& sent) {
  absl::StatusOr<DecodedMessage> got = DecodeTensorMessage(sent.header, ByteSize(sent.payload));
  if (!got.ok()) return got;
  std::string bytes;
  for (const Piece& piece : sent.payload) bytes.append(piece.data, piece.bytes);
  const char* from = bytes.data();
  for (const Piece& place : got->places) {
    if (place.bytes > 0) std::memcpy(place.data, from, place.bytes);
    from += place.bytes;
  }
  EXPECT_EQ(from, bytes.data() + bytes.size());
  return got;
}

DecodedMessage ThereAndBack(const Batch& values) {
  const auto sent = EncodeTensorMessage(kKey, values);
  EXPECT_TRUE(sent.ok()) << sent.status();
  auto got = Carried(*sent);
  EXPECT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->key, kKey);
  return *std::move(got);
}

void ExpectSame(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_EQ(got.scalar_type(), want.scalar_type());
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_TRUE(BytesOf(got.contiguous()) == BytesOf(want.contiguous()));
}

TEST(TensorMessage, EveryTypeComesBackBitForBit) {
  for (const at::ScalarType type :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32, at::kUInt64,
        at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble}) {
    const at::Tensor tensor = at::empty({2, 3}, type);
    auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
    for (size_t i = 0; i < tensor.nbytes(); ++i)
      bytes[i] = static_cast<unsigned char>(type == at::kBool ? i % 2 : 37 * i);
    const DecodedMessage got = ThereAndBack(Batch(tensor));
    ASSERT_TRUE(got.values.atomic());
    ExpectSame(got.values.TensorAt(0), tensor);
    EXPECT_TRUE(CheckArrived(got.values).ok());
  }
}

TEST(TensorMessage, ScalarsEmptyTensorsAndStridesComeBack) {
  ExpectSame(ThereAndBack(Batch(at::full({}, 2.5))).values.TensorAt(0), at::full({}, 2.5));
  ExpectSame(ThereAndBack(Batch(at::empty({0, 5}))).values.TensorAt(0), at::empty({0, 5}));
  const at::Tensor plain = at::arange(2 * 3 * 4 * 5).reshape({2, 3, 4, 5});
  const at::Tensor last = plain.contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& tensor : {plain, last, plain.permute({3, 1, 0, 2}), plain.select(1, 2),
                                   plain.slice(3, 0, 5, 2), plain.slice(0, 0, 1).expand({6, 3, 4, 5})}) {
    const at::Tensor got = ThereAndBack(Batch(tensor)).values.TensorAt(0);
    ExpectSame(got, tensor);
    EXPECT_TRUE(!tensor.is_non_overlapping_and_dense() || got.strides() == tensor.strides());
  }
  EXPECT_FALSE(ThereAndBack(Batch(at::full({1}, 1.0).requires_grad_(true))).values.TensorAt(0).requires_grad());
}

TEST(TensorMessage, ElementsLieAsFarBehindABoundaryAsTheyDid) {
  const auto skew = [](const at::Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64; };
  for (const at::ScalarType type : {at::kByte, at::kFloat, at::kComplexDouble}) {
    const at::Tensor whole = at::arange(5 * 70, at::kFloat).to(type).reshape({70, 5});
    for (int64_t row = 0; row < 65; ++row) {
      const at::Tensor tensor = whole.slice(0, row, row + 5);
      const at::Tensor got = ThereAndBack(Batch(tensor)).values.TensorAt(0);
      ExpectSame(got, tensor);
      ASSERT_EQ(skew(got), skew(tensor)) << row;
    }
  }
}

TEST(TensorMessage, NestedValuesComeBackInTheirForm) {
  const at::Tensor inner = at::full({2}, 7.0);
  const Batch sent = Batch::Tuple(
      {Value(), Value(true), Value(int64_t{-5}), Value(0.1), Value("text"), Value(WholeTensor{inner}),
       Value(at::Tensor()),
       Value::Dict({{"n", Value(7)}, {"list", Value::List({Value(inner), Value::Tuple({Value(2), Value(inner)})})}})});
  const Batch got = ThereAndBack(sent).values;
  EXPECT_EQ(TypesText(got), TypesText(sent));
  EXPECT_FALSE(got.atomic());
  EXPECT_TRUE(*got[1].boolean());
  EXPECT_EQ(*got[2].integer(), -5);
  EXPECT_EQ(*got[3].number(), 0.1);
  EXPECT_EQ(*got[4].text(), "text");
  ExpectSame(*got[5].whole(), inner);
  EXPECT_FALSE(got[6].tensor()->defined());
  const ValueDict& dict = *got[7].dict();
  EXPECT_EQ(dict[0].first, "n");
  ExpectSame(*dict[1].second.list()->at(1).tuple()->at(1).tensor(), inner);
}

TEST(TensorMessage, FormsOfBatchesComeBack) {
  EXPECT_TRUE(ThereAndBack(Batch()).values.empty());
  EXPECT_FALSE(ThereAndBack(Batch::Tuple({Value(1)})).values.atomic());
  const Batch spread = ThereAndBack(Batch(Value::List({Value(1), Value(2)})).Spread()).values;
  EXPECT_TRUE(spread.spread());
  EXPECT_EQ(spread.size(), 2);
}

TEST(TensorMessage, RefusesToSendWhatHasNoBytes) {
  const auto sparse = EncodeTensorMessage(kKey, Batch::Tuple({Value(1), Value(at::zeros({2, 2}).to_sparse())}));
  EXPECT_EQ(ReasonOf(sparse.status()), "TENSOR_SIGNATURE");
  EXPECT_EQ(ValuesOf(sparse.status())["field"], "values[1]");
  const auto large = EncodeTensorMessage(kKey, Batch(Value(std::string(kMaximumFrameHeaderBytes, 'x'))));
  EXPECT_EQ(ReasonOf(large.status()), "TENSOR_TOO_LARGE");
  Value deep;
  for (int i = 0; i < 40; ++i) deep = Value::List({deep});
  EXPECT_EQ(ReasonOf(EncodeTensorMessage(kKey, Batch(deep)).status()), "TENSOR_SIGNATURE");
}

TEST(TensorMessage, EveryShortenedHeaderIsRefused) {
  const auto sent = EncodeTensorMessage(kKey, Batch::Tuple({Value(at::zeros({2, 3})), Value("text"), Value(true)}));
  for (size_t size = 0; size < sent->header.size(); ++size) {
    const auto got = DecodeTensorMessage(std::string_view(sent->header).substr(0, size), 24);
    EXPECT_EQ(ReasonOf(got.status()), "RANK_MESSAGE") << size;
  }
  EXPECT_EQ(ValuesOf(DecodeTensorMessage(sent->header + "x", 24).status())["field"], "values");
}

// A message of one tensor, written by hand so that it can lie.
struct Lie {
  int8_t type = static_cast<int8_t>(at::kFloat);
  std::vector<int64_t> shape = {2, 3};
  std::vector<int64_t> strides = {3, 1};
  int64_t payload_bytes = 24;
  uint32_t count = 1;
  int32_t stage = 1;
  uint8_t skew = 0;

  std::string Field() const {
    PackedWriter out;
    out.Put(int64_t{1});
    out.Put(uint8_t{0});
    out.Put(stage);
    out.Put(int32_t{0});
    out.Put(int32_t{-1});
    out.Put(uint8_t{0});
    out.Put(uint8_t{0});
    out.Put(count);
    out.Put(uint8_t{1});
    out.Put(uint8_t{1});
    out.Put(type);
    out.Put(static_cast<uint8_t>(shape.size()));
    for (size_t i = 0; i < shape.size(); ++i) {
      out.Put(shape[i]);
      out.Put(strides[i]);
    }
    out.Put(skew);
    const auto got = DecodeTensorMessage(out.Take(), payload_bytes);
    return got.ok() ? "" : ValuesOf(got.status())["field"];
  }
};

TEST(TensorMessage, LiesAreNamed) {
  EXPECT_EQ(Lie{}.Field(), "");
  EXPECT_EQ(Lie{.type = 120}.Field(), "values[0].type");
  EXPECT_EQ(Lie{.type = static_cast<int8_t>(at::kQInt8)}.Field(), "values[0].type");
  EXPECT_EQ((Lie{.shape = {2, -3}}).Field(), "values[0].shape");
  EXPECT_EQ((Lie{.shape = {int64_t{1} << 40, int64_t{1} << 40}}).Field(), "values[0].shape");
  EXPECT_EQ((Lie{.shape = {int64_t{1} << 61, 1}, .strides = {1, 1}}).Field(), "values[0].shape");
  EXPECT_EQ((Lie{.strides = {6, 1}}).Field(), "values[0].strides");
  EXPECT_EQ((Lie{.strides = {1, 1}}).Field(), "values[0].strides");
  EXPECT_EQ((Lie{.strides = {-3, 1}}).Field(), "values[0].strides");
  EXPECT_EQ((Lie{.shape = {int64_t{1} << 40, 3}}).Field(), "values[0]");  // more than the payload: no memory is taken
  EXPECT_EQ(Lie{.payload_bytes = 23}.Field(), "values[0]");
  EXPECT_EQ(Lie{.payload_bytes = 25}.Field(), "payload_bytes");
  EXPECT_EQ(Lie{.count = 2}.Field(), "values[1]");
  EXPECT_EQ(Lie{.count = 4'000'000'000}.Field(), "values");
  EXPECT_EQ(Lie{.stage = -1}.Field(), "key.stage");
  EXPECT_EQ(Lie{.skew = 15}.Field(), "");
  EXPECT_EQ(Lie{.skew = 16}.Field(), "values[0].skew");
}

TEST(TensorMessage, DiffersFromThePlan) {
  const auto sent = EncodeTensorMessage(kKey, Batch(at::zeros({2, 3})));
  const auto field = [&](std::vector<TensorForm> expected) {
    const auto got = DecodeTensorMessage(sent->header, 24, [&](const MessageKey& key) {
      EXPECT_EQ(key, kKey);
      return &expected;
    });
    return got.ok() ? "" : ValuesOf(got.status())["field"];
  };
  EXPECT_EQ(field({{at::kFloat, {-1, 3}}}), "");
  EXPECT_EQ(field({{at::kFloat, {-1, 4}}}), "values[0]");
  EXPECT_EQ(field({{at::kFloat, {2, 3, 1}}}), "values[0]");
  EXPECT_EQ(field({{at::kInt, {2, 3}}}), "values[0]");
  EXPECT_EQ(field({}), "values");
  const auto none = EncodeTensorMessage(kKey, Batch::Tuple({Value(), Value()}));
  const std::vector<TensorForm> one = {{at::kFloat, {2}}};
  EXPECT_TRUE(DecodeTensorMessage(none->header, 0, [&](const MessageKey&) { return &one; }).ok());
}

TEST(TensorMessage, AdmissionComesBeforeTheRest) {
  const auto sent = EncodeTensorMessage(kKey, Batch(at::zeros({2, 3})));
  const auto got = DecodeTensorMessage(sent->header.substr(0, 21), 24, [](const MessageKey&) {
    return absl::StatusOr<const std::vector<TensorForm>*>(absl::CancelledError());
  });
  EXPECT_TRUE(absl::IsCancelled(got.status()));
}

TEST(TensorMessage, BoolsAreZeroOrOne) {
  const at::Tensor tensor = at::zeros({4}, at::kBool);
  static_cast<uint8_t*>(tensor.mutable_data_ptr())[2] = 2;
  const absl::Status status = CheckArrived(Batch::Tuple({Value(at::zeros({1})), Value(tensor)}));
  EXPECT_EQ(ValuesOf(status)["field"], "tensors[1].data");
  EXPECT_EQ(ValuesOf(status)["value"], "2");
}

}  // namespace
}  // namespace penstock
