#include "engine/tensor/codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "engine/base/error.h"

namespace penstock {
namespace {

TEST(Codec, EveryTypeComesBackBitForBit) {
  for (int number = 1; number < kDataTypeCount; ++number) {
    const auto type = static_cast<DataType>(number);
    ASSERT_TRUE(ToScalarType(type).has_value());
    EXPECT_EQ(ToDataType(*ToScalarType(type)), type);
    TensorHeader header{.name = "t", .type = type, .shape = {2, 3}, .byte_size = 6 * ItemSize(type)};
    std::string bytes(header.byte_size, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(type == DataType::kBool ? i % 2 : 37 * i);
    const auto tensor = DecodeTensor(header, {bytes}, "t");
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(BytesOf(*tensor), bytes);
    EXPECT_EQ(*HeaderOf("t", *tensor), header);
  }
}

TEST(Codec, JoinsPiecesAndTakesScalarsAndEmptyTensors) {
  TensorHeader header{.name = "t", .type = DataType::kInt32, .shape = {}, .byte_size = 4};
  const auto scalar = DecodeTensor(header, {std::string_view("\x01", 1), std::string_view("\0\0\0", 3)}, "t");
  ASSERT_TRUE(scalar.ok());
  EXPECT_EQ(*scalar->const_data_ptr<int32_t>(), 1);
  header.shape = {0, 5};
  header.byte_size = 0;
  EXPECT_TRUE(DecodeTensor(header, {}, "t").ok());
}

TEST(Codec, RefusesBytesThatDontFill) {
  const TensorHeader header{.name = "t", .type = DataType::kInt32, .shape = {2}, .byte_size = 8};
  for (size_t size : {0, 7, 9}) {
    const auto tensor = DecodeTensor(header, {std::string(size, 'x')}, "inputs[1]");
    ASSERT_FALSE(tensor.ok());
    EXPECT_EQ(ReasonOf(tensor.status()), "TENSOR_HEADER");
    EXPECT_EQ(ValuesOf(tensor.status())["field"], "inputs[1].data");
    EXPECT_EQ(ValuesOf(tensor.status())["value"], std::to_string(size));
  }
}

TEST(Codec, RefusesABoolThatIsNeitherTrueNorFalse) {
  const TensorHeader header{.name = "t", .type = DataType::kBool, .shape = {2}, .byte_size = 2};
  const auto tensor = DecodeTensor(header, {std::string_view("\x01\x02", 2)}, "t");
  EXPECT_EQ(ReasonOf(tensor.status()), "TENSOR_HEADER");
  EXPECT_EQ(ValuesOf(tensor.status())["value"], "2");
}

TEST(Codec, SendsViewsAsTheyLook) {
  const TensorHeader header{.name = "t", .type = DataType::kInt8, .shape = {2, 2}, .byte_size = 4};
  const auto tensor = DecodeTensor(header, {std::string_view("abcd")}, "t");
  ASSERT_TRUE(tensor.ok());
  const auto turned = SendableTensor(tensor->t());
  ASSERT_TRUE(turned.ok());
  EXPECT_EQ(BytesOf(*turned), "acbd");
  const auto same = SendableTensor(*tensor);
  EXPECT_EQ(BytesOf(*same).data(), BytesOf(*tensor).data());  // no copy where none is needed
}

}  // namespace
}  // namespace penstock
