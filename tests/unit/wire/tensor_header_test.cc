#include "engine/wire/tensor_header.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TensorHeader Header(std::vector<int64_t> shape, int64_t byte_size) {
  return {.name = "x", .type = DataType::kFp32, .shape = std::move(shape), .byte_size = byte_size};
}

void ExpectRefused(const absl::Status& status, std::string_view field, std::string_view value) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), "TENSOR_HEADER") << status;
  EXPECT_EQ(ValuesOf(status)["field"], field) << status;
  EXPECT_EQ(ValuesOf(status)["value"], value) << status;
}

void ExpectTooLarge(const absl::Status& status, std::string_view field, std::string_view value) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ReasonOf(status), "TENSOR_TOO_LARGE") << status;
  EXPECT_EQ(ValuesOf(status)["field"], field) << status;
  EXPECT_EQ(ValuesOf(status)["value"], value) << status;
}

TEST(DataTypes, HaveTheNamesAndSizesOfTheProtocol) {
  const std::vector<std::pair<std::string, int64_t>> expected = {
      {"BOOL", 1}, {"UINT8", 1}, {"INT8", 1},   {"FP16", 2}, {"BF16", 2},  {"INT16", 2}, {"UINT16", 2},
      {"FP32", 4}, {"INT32", 4}, {"UINT32", 4}, {"FP64", 8}, {"INT64", 8}, {"UINT64", 8}};
  ASSERT_EQ(expected.size() + 1, kDataTypeCount);
  std::set<DataType> types;
  for (const auto& [name, size] : expected) {
    const std::optional<DataType> type = DataTypeFromName(name);
    ASSERT_TRUE(type.has_value()) << name;
    EXPECT_TRUE(IsKnown(*type)) << name;
    EXPECT_EQ(DataTypeName(*type), name);
    EXPECT_EQ(ItemSize(*type), size) << name;
    types.insert(*type);
  }
  EXPECT_EQ(types.size(), expected.size());
}

TEST(DataTypes, AreNotGuessed) {
  for (std::string_view name : {"", "fp32", "FP8", "UNSPECIFIED", "FP32 ", "BYTES"}) {
    EXPECT_FALSE(DataTypeFromName(name).has_value()) << name;
  }
  for (int number : {-1, 0, 14, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    EXPECT_FALSE(IsKnown(static_cast<DataType>(number))) << number;
    EXPECT_EQ(ItemSize(static_cast<DataType>(number)), 0) << number;
  }
}

TEST(TensorHeader, ScalarsAndEmptyTensorsAreLegal) {
  EXPECT_TRUE(ValidateTensorHeader(Header({}, 4), "t").ok());
  EXPECT_TRUE(ValidateTensorHeader(Header({0}, 0), "t").ok());
  EXPECT_TRUE(ValidateTensorHeader(Header({3, 0, 5}, 0), "t").ok());
  EXPECT_TRUE(ValidateTensorHeader(Header({1, 1, 1, 1, 1, 1, 1, 2}, 8), "t").ok());
}

TEST(TensorHeader, NamesAreChecked) {
  TensorHeader header = Header({1}, 4);
  for (const std::string& good :
       {std::string("layers.0.weight"), std::string("_x-1"), std::string("INPUT 0/BiasAdd:0"), std::string(128, 'n')}) {
    header.name = good;
    EXPECT_TRUE(ValidateTensorHeader(header, "t").ok()) << good;
  }
  header.name = "";
  ExpectRefused(ValidateTensorHeader(header, "t"), "t.name", "an empty name");
  EXPECT_TRUE(ValidateTensorHeader(header, "t", {.allow_empty_name = true}).ok());
  header.name = std::string(129, 'n');
  ExpectRefused(ValidateTensorHeader(header, "t"), "t.name", "129 bytes");
  header.name = "\xc3\xa9";
  ExpectRefused(ValidateTensorHeader(header, "t"), "t.name", "\xc3\xa9");
  header.name = std::string("a\0z", 3);
  ExpectRefused(ValidateTensorHeader(header, "t"), "t.name", "a\\x00z");
  header.name = "a\nb\x1b[31m";
  ExpectRefused(ValidateTensorHeader(header, "t"), "t.name", "a\\nb\\x1b[31m");
}

TEST(TensorHeader, UnknownTypesAreRefusedByNumber) {
  TensorHeader header = Header({1}, 4);
  header.type = static_cast<DataType>(99);
  ExpectRefused(ValidateTensorHeader(header, "t"), "t.type", "99");
  header.type = DataType::kUnspecified;
  ExpectRefused(ValidateTensorHeader(header, "t"), "t.type", "0");
}

TEST(TensorHeader, TheRankIsLimited) {
  ExpectRefused(ValidateTensorHeader(Header(std::vector<int64_t>(9, 1), 4), "t"), "t.shape", "9");
  ExpectRefused(ValidateTensorHeader(Header(std::vector<int64_t>(1'000'000, 1), 4), "t"), "t.shape", "1000000");
}

TEST(TensorHeader, NegativeDimensionsAreNamed) {
  ExpectRefused(ValidateTensorHeader(Header({2, -1}, 4), "tensors[2]"), "tensors[2].shape[1]", "-1");
  ExpectRefused(ValidateTensorHeader(Header({-kMax - 1}, 4), "t"), "t.shape[0]", std::to_string(-kMax - 1));
}

TEST(TensorHeader, ProductsThatOverflowAreRefused) {
  const int64_t big = int64_t{1} << 62;
  const int64_t half = int64_t{1} << 32;
  ExpectRefused(ValidateTensorHeader(Header({big, 4}, 0), "t"), "t.shape", "[4611686018427387904, 4]");
  // 2^64 wraps to 0, and a dimension of 0 hides nothing.
  ExpectRefused(ValidateTensorHeader(Header({half, half}, 0), "t"), "t.shape", "[4294967296, 4294967296]");
  ExpectRefused(ValidateTensorHeader(Header({half, half, 0}, 0), "t"), "t.shape", "[4294967296, 4294967296, 0]");
  ExpectRefused(ValidateTensorHeader(Header({0, half, half}, 0), "t"), "t.shape", "[0, 4294967296, 4294967296]");
  // The count fits, the bytes do not.
  ExpectRefused(ValidateTensorHeader(Header({big}, 0), "t"), "t.shape", "[4611686018427387904]");
}

TEST(TensorHeader, LiesAboutTheBytesAreRefused) {
  for (int64_t declared : {int64_t{23}, int64_t{25}, int64_t{0}, int64_t{-24}, kMax}) {
    ExpectRefused(ValidateTensorHeader(Header({2, 3}, declared), "t"), "t.byte_size", std::to_string(declared));
  }
}

TEST(TensorHeader, TheTensorLimitIsExact) {
  const int64_t gibibyte = int64_t{1} << 30;
  EXPECT_TRUE(ValidateTensorHeader(Header({gibibyte / 4}, gibibyte), "t").ok());
  ExpectTooLarge(ValidateTensorHeader(Header({gibibyte / 4 + 1}, gibibyte + 4), "t"), "t.byte_size",
                 std::to_string(gibibyte + 4));
}

TEST(TensorHeaders, AreCountedFirst) {
  std::vector<TensorHeader> headers(65, Header({-1}, 4));
  ExpectRefused(ValidateTensorHeaders(headers), "tensors", "65");
}

TEST(TensorHeaders, MayNotShareAName) {
  std::vector<TensorHeader> headers(3, Header({1}, 4));
  headers[1].name = "y";
  ExpectRefused(ValidateTensorHeaders(headers, "inputs"), "inputs[2].name", "x");
  for (TensorHeader& header : headers) header.name = "";
  EXPECT_TRUE(ValidateTensorHeaders(headers, "inputs", {.allow_empty_name = true}).ok());
}

TEST(TensorHeaders, AreLimitedTogether) {
  const int64_t gibibyte = int64_t{1} << 30;
  std::vector<TensorHeader> headers;
  for (int i = 0; i < 4; ++i) {
    headers.push_back(Header({gibibyte / 4}, gibibyte));
    headers.back().name = "x" + std::to_string(i);
  }
  EXPECT_TRUE(ValidateTensorHeaders(headers).ok());
  headers.push_back({.name = "y", .type = DataType::kUint8, .shape = {}, .byte_size = 1});
  ExpectTooLarge(ValidateTensorHeaders(headers), "tensors", std::to_string(4 * gibibyte + 1));
}

TEST(TensorHeaders, TheFirstFaultIsAnswered) {
  std::vector<TensorHeader> headers(2, Header({-1}, 4));
  headers[1].name = "\n";
  ExpectRefused(ValidateTensorHeaders(headers), "tensors[0].shape[0]", "-1");
}

TEST(Shortened, IsPrintableAndShort) {
  EXPECT_EQ(Shortened("abc"), "abc");
  EXPECT_EQ(Shortened(std::string(64, 'a')), std::string(64, 'a'));
  EXPECT_EQ(Shortened(std::string(65, 'a')), std::string(61, 'a') + "...");
  EXPECT_LE(Shortened(std::string(1000, '\xff')).size(), 64u);
  EXPECT_EQ(Shortened("\xff\n"), "\\xff\\n");
  EXPECT_EQ(Shortened("Jürgen"), "Jürgen");
  EXPECT_EQ(Shortened(std::string(60, 'a') + "üüü"), std::string(60, 'a') + "...") << "never half a character";
}

// Whatever a header says, validation answers, and never accepts more than the limits allow.
TEST(TensorHeaders, RandomOnesNeverPassWithMoreThanTheyMayHold) {
  std::mt19937_64 random(7);
  const std::vector<int64_t> dimensions = {-1, 0, 1, 2, 3, 1 << 15, int64_t{1} << 31, int64_t{1} << 62, kMax};
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    TensorHeader header;
    header.name = random() % 8 == 0 ? "bad name" : "x";
    header.type = static_cast<DataType>(static_cast<int>(random() % 16) - 1);
    header.shape.resize(random() % 10);
    double product = 1;
    for (int64_t& dimension : header.shape) {
      dimension = dimensions[random() % dimensions.size()];
      product *= static_cast<double>(dimension);
    }
    const auto bytes = PayloadBytes(header.type, header.shape, "t");
    header.byte_size = bytes.ok() ? *bytes : 0;
    if (!ValidateTensorHeader(header, "t").ok()) continue;
    ++accepted;
    EXPECT_LE(product * static_cast<double>(ItemSize(header.type)), static_cast<double>(int64_t{1} << 30));
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace penstock
