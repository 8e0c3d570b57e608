#include "engine/model/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>

#include <string>

#include "engine/base/error.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

std::string Written(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata = {}) {
  std::string bytes;
  const absl::Status status = WriteSafetensors(tensors, metadata, [&](std::string_view part) {
    bytes.append(part);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

// A file with this header and so many bytes of elements.
std::string File(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, '\0');
}

void ExpectRefused(const std::string& bytes, const std::string& field) {
  const absl::Status status = ReadSafetensors(bytes).status();
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
  EXPECT_EQ(ValuesOf(status)["field"], field) << status;
  EXPECT_FALSE(ValuesOf(status)["value"].empty()) << status;
}

TEST(SafetensorsTest, EveryTypeComesBackBitForBit) {
  NamedTensors tensors;
  for (int number = 1; number < kDataTypeCount; ++number) {
    const auto type = static_cast<DataType>(number);
    tensors.push_back({std::string(DataTypeName(type)), at::arange(2).to(*ToScalarType(type)).reshape({1, 2})});
  }
  tensors.push_back({"empty", at::full({0, 3}, 1.0)});
  tensors.push_back({"scalar", at::full({}, 7.0)});
  tensors.push_back({"turned", at::rand({3, 4}).t()});
  const absl::StatusOr<Safetensors> read = ReadSafetensors(Written(tensors, {{"step", "12"}}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->metadata.at("step"), "12");
  ASSERT_EQ(read->tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(read->tensors[i].name, tensors[i].name);
    EXPECT_EQ(read->tensors[i].tensor.scalar_type(), tensors[i].tensor.scalar_type());
    EXPECT_EQ(read->tensors[i].tensor.sizes(), tensors[i].tensor.sizes());
    EXPECT_EQ(BytesOf(read->tensors[i].tensor), BytesOf(tensors[i].tensor.contiguous()));
  }
}

TEST(SafetensorsTest, ReadsTheFormatAsOthersWriteIt) {
  const std::string header = R"({"b":{"data_offsets":[4,12],"shape":[2],"dtype":"F32"},"__metadata__":{"format":"pt"},)"
                             R"("a":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}}   )";
  const absl::StatusOr<Safetensors> read = ReadSafetensors(File(header, 12));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tensors[0].name, "a");
  EXPECT_EQ(read->tensors[1].name, "b");
}

TEST(SafetensorsTest, LengthsThatLieAreRefused) {
  ExpectRefused("", "file");
  ExpectRefused("1234567", "file");
  ExpectRefused(std::string(7, '\0') + '\x80', "header length");
  ExpectRefused(std::string(8, '\xff') + "{}", "header length");
  std::string one_more = File("{}", 0);
  one_more[0] = 3;
  ExpectRefused(one_more, "header length");
  ExpectRefused(File("{}", 1), "file");
}

TEST(SafetensorsTest, JsonThatIsNotTheFormatIsRefused) {
  for (const char* header :
       {"", "{", "[]", "null", "12", "{} {}", "{\"a\":1}", "{\"a\":[1]}", "{\"a\":null}", "\xff",
        "{\"__metadata__\":{\"a\":1}}", "{\"__metadata__\":{\"a\":{}}}", "{\"__metadata__\":[]}"}) {
    EXPECT_EQ(ReasonOf(ReadSafetensors(File(header, 0)).status()), "SPEC_INVALID") << header;
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  EXPECT_EQ(ReasonOf(ReadSafetensors(File(deep, 0)).status()), "SPEC_INVALID");
  EXPECT_EQ(ReasonOf(ReadSafetensors(File(std::string(100'000, '['), 0)).status()), "SPEC_INVALID");
}

TEST(SafetensorsTest, FaultsOfATensorNameItAndTheValue) {
  const auto tensor = [](const std::string& fields) { return "{\"w\":{" + fields + "}}"; };
  ExpectRefused(File(tensor(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"), 4), "tensors[w].dtype");
  EXPECT_EQ(
      ValuesOf(
          ReadSafetensors(File(tensor(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"), 4)).status())["value"],
      "F8_E4M3");
  ExpectRefused(File(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4), "tensors[w].data_offsets");
  ExpectRefused(File(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4), "tensors[w].data_offsets");
  ExpectRefused(File(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8), "tensors[w].data_offsets");
  ExpectRefused(File(tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4), "tensors[w].shape");
  ExpectRefused(File(tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4), "tensors[w].shape");
  ExpectRefused(File(tensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"), 0),
                "tensors[w].shape");
  ExpectRefused(File(tensor(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0])"), 0),
                "tensors[w].shape");
  ExpectRefused(File(tensor(R"("dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0),
                "tensors[w].shape");
  ExpectRefused(File(tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1),
                "tensors[w].shape");
  ExpectRefused(File(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1), "tensors[w].data_offsets");
  ExpectRefused(File(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1), "tensors[w].data_offsets");
  ExpectRefused(File(tensor(R"("dtype":"U8","shape":[1])"), 1), "tensors[w]");
  ExpectRefused(File(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1)"), 1), "tensors[w]");
  ExpectRefused(File(tensor(R"("dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1])"), 1), "tensors[w]");
}

TEST(SafetensorsTest, RangesMustFollowEachOtherWithoutGapOrOverlap) {
  const auto two = [](const std::string& first, const std::string& second) {
    return "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + first +
           "},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" + second + "}}";
  };
  EXPECT_TRUE(ReadSafetensors(File(two("[2,4]", "[0,2]"), 4)).ok());
  ExpectRefused(File(two("[0,2]", "[1,3]"), 3), "tensors[b].data_offsets");
  ExpectRefused(File(two("[0,2]", "[0,2]"), 2), "tensors[b].data_offsets");
  ExpectRefused(File(two("[0,2]", "[3,5]"), 5), "tensors[b].data_offsets");
  ExpectRefused(File(two("[0,2]", "[2,4]"), 5), "file");
  ExpectRefused(File(two("[0,2]", "[2,4]"), 3), "file");
  ExpectRefused(File("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":{}}", 0), "header");
}

TEST(SafetensorsTest, NoCutAndNoFlippedByteOfTheHeaderBreaksTheReader) {
  const std::string whole = Written({{"w", at::full({4}, 1.0f)}, {"b", at::full({2}, 2.0f)}}, {{"k", "v"}});
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ReadSafetensors(whole.substr(0, size)).ok()) << "cut at " << size;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const char flip : {'\x01', '\x20', '\x80'}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      ReadSafetensors(damaged).status().IgnoreError();  // any answer, no crash
    }
  }
}

TEST(SafetensorsTest, TheWriterRefusesNamesThatRepeat) {
  const auto ignore = [](std::string_view) { return absl::OkStatus(); };
  const at::Tensor one = at::full({1}, 1.0f);
  EXPECT_EQ(ReasonOf(WriteSafetensors({{"a", one}, {"a", one}}, {}, ignore)), "SPEC_INVALID");
  EXPECT_EQ(ReasonOf(WriteSafetensors({{"\xff", one}}, {}, ignore)), "SPEC_INVALID");
  EXPECT_EQ(WriteSafetensors({{"a", one}}, {}, [](std::string_view) { return absl::AbortedError("stop"); }).code(),
            absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace penstock
