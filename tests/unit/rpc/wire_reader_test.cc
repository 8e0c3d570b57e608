// The raw parsers: what they take must not depend on where the bytes are cut.

#include "server/rpc/convert/wire_reader.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "inference/grpc_service.pb.h"
#include "penstock/v1/handle.pb.h"
#include "penstock/v1/pipeline.pb.h"
#include "server/rpc/convert/inference_request.h"
#include "server/rpc/convert/message_entries.h"
#include "server/rpc/streams/tensor_stream.h"

namespace penstock {
namespace {

std::string ChunkBytes() {
  v1::TensorChunk chunk;
  chunk.set_tensor(3);
  chunk.set_offset(int64_t{1} << 40);
  chunk.set_data(std::string(300, 'd'));
  chunk.set_crc32c(0xdeadbeef);
  return chunk.SerializeAsString();
}

std::string InferBytes() {
  inference::ModelInferRequest request;
  request.set_model_name("gpt");
  request.set_id("7");
  for (const char* name : {"a", "b"}) {
    auto* input = request.add_inputs();
    input->set_name(name);
    input->set_datatype("FP32");
    input->add_shape(2);
    request.add_raw_input_contents("12345678");
  }
  (*request.mutable_parameters())["timeout"].set_int64_param(1000);
  return request.SerializeAsString();
}

TEST(WireReader, ReadsEveryKindOfField) {
  std::string bytes;
  for (uint32_t type : {0u, 1u, 5u}) {
    AppendField({.number = 1 + type, .type = type, .value = 300, .bytes = {}}, &bytes);
  }
  AppendField({.number = 100'000, .type = 2, .value = 0, .bytes = {"ab", "c"}}, &bytes);
  WireReader reader({bytes});
  for (uint32_t type : {0u, 1u, 5u}) {
    const auto field = reader.Next();
    ASSERT_TRUE(field.ok());
    EXPECT_EQ(field->number, 1 + type);
    EXPECT_EQ(field->value, 300u);
  }
  const auto field = reader.Next();
  ASSERT_TRUE(field.ok());
  EXPECT_EQ(field->number, 100'000u);
  EXPECT_EQ(JoinPieces(field->bytes), "abc");
  EXPECT_TRUE(reader.AtEnd());
}

TEST(WireReader, ChunkIsTheSameWhereverItIsCut) {
  const std::string bytes = ChunkBytes();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::string first = bytes.substr(0, cut);
    const std::string second = bytes.substr(cut);
    const auto chunk = ReadChunk({first, second});
    ASSERT_TRUE(chunk.ok()) << cut;
    EXPECT_EQ(chunk->tensor, 3);
    EXPECT_EQ(chunk->offset, int64_t{1} << 40);
    EXPECT_EQ(JoinPieces(chunk->data), std::string(300, 'd'));
    EXPECT_EQ(chunk->checksum, 0xdeadbeefu);
  }
  Pieces single;  // every byte alone
  for (const char& byte : bytes) single.emplace_back(&byte, 1);
  ASSERT_TRUE(ReadChunk(single).ok());
}

TEST(WireReader, InferenceRequestIsTheSameWhereverItIsCut) {
  const std::string bytes = InferBytes();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const std::string first = bytes.substr(0, cut);
    const std::string second = bytes.substr(cut);
    const auto split = SplitRequest({first, second});
    ASSERT_TRUE(split.ok()) << cut;
    EXPECT_EQ(split->message.model_name(), "gpt");
    EXPECT_EQ(split->message.raw_input_contents_size(), 0);
    ASSERT_EQ(split->raw_contents.size(), 2u);
    EXPECT_EQ(JoinPieces(split->raw_contents[1]), "12345678");
    const auto inputs = DecodeInputs(*split);
    ASSERT_TRUE(inputs.ok());
    EXPECT_EQ((*inputs)[1].name, "b");
  }
}

TEST(WireReader, TruncatedBytesAreRefusedOrAnEarlierEnd) {
  for (const std::string& bytes : {ChunkBytes(), InferBytes()}) {
    for (size_t size = 0; size < bytes.size(); ++size) {
      const std::string part = bytes.substr(0, size);
      WireReader reader({part});
      bool refused = false;
      while (!reader.AtEnd() && !refused) refused = !reader.Next().ok();
      const auto split = SplitRequest({part});
      if (refused) {
        EXPECT_EQ(ReasonOf(split.status()), "FIELD_INVALID") << size;
      }
    }
  }
}

TEST(WireReader, RefusesWhatIsNoMessage) {
  const std::string group("\x0b\x0c", 2);
  const std::string zero("\x02\x00", 2);
  const std::string endless(11, '\xff');
  const std::string beyond("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11);  // 2^64 - 1 bytes
  const std::string number_of_65_bits = "\x08" + std::string(9, '\xff') + "\x02";
  for (const std::string& bytes : {group, zero, endless, beyond, number_of_65_bits}) {
    WireReader reader({bytes});
    const auto field = reader.Next();
    ASSERT_FALSE(field.ok());
    EXPECT_EQ(field.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(field.status()), "FIELD_INVALID");
  }
}

TEST(SplitRequest, CountsBeforeItKeeps) {
  inference::ModelInferRequest many;
  many.set_model_name("gpt");
  for (int i = 0; i < 65; ++i) many.add_raw_input_contents("x");
  EXPECT_FALSE(SplitRequest({many.SerializeAsString()}).ok());
  std::string unknown;
  for (int i = 0; i < 100'000; ++i) {
    AppendField({.number = 9, .type = 0, .value = 1, .bytes = {}}, &unknown);
  }
  EXPECT_FALSE(SplitRequest({unknown}).ok());
}

TEST(SplitRequest, HoldsFourMebibytesBesideRawContents) {
  inference::ModelInferRequest request;
  request.ParseFromString(InferBytes());
  request.set_raw_input_contents(0, std::string(8 << 20, 'r'));
  EXPECT_TRUE(SplitRequest({request.SerializeAsString()}).ok());
  auto* contents = request.mutable_inputs(0)->mutable_contents();
  for (int i = 0; i < 1 << 20; ++i) contents->add_fp32_contents(1);
  const absl::Status large = SplitRequest({request.SerializeAsString()}).status();
  EXPECT_EQ(ReasonOf(large), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(ValuesOf(large)["field"], "inputs");
  contents->mutable_fp32_contents()->Truncate((1 << 20) - 100);
  EXPECT_TRUE(SplitRequest({request.SerializeAsString()}).ok());
}

TEST(MessageEntries, AreCountedOnTheWire) {
  constexpr int kMost = 100;
  const auto check = [&](const google::protobuf::Message& message) {
    return CheckMessageEntries({message.SerializeAsString()}, message.GetDescriptor(), kMost);
  };
  inference::ModelInferRequest strings;  // each empty string is two bytes
  for (int i = 0; i < kMost - 2; ++i) strings.add_inputs();
  EXPECT_TRUE(check(strings).ok());
  strings.mutable_inputs(0)->mutable_contents()->add_bytes_contents();
  EXPECT_TRUE(check(strings).ok()) << "an input's contents, and one string of them";
  strings.mutable_inputs(0)->mutable_contents()->add_bytes_contents();
  const absl::Status many = check(strings);
  EXPECT_EQ(ReasonOf(many), "FIELD_INVALID");
  EXPECT_EQ(ValuesOf(many)["field"], "message");

  inference::ModelInferRequest numbers;
  auto* contents = numbers.add_inputs()->mutable_contents();
  for (int i = 0; i < 10 * kMost; ++i) contents->add_int64_contents(i);
  EXPECT_TRUE(check(numbers).ok()) << "packed";
  std::string unpacked;
  for (int i = 0; i < 10 * kMost; ++i) AppendField({.number = 3, .type = 0, .value = 1, .bytes = {}}, &unpacked);
  const auto* schema = inference::InferTensorContents::descriptor();
  EXPECT_TRUE(CheckMessageEntries({unpacked}, schema, kMost).ok());
  std::string fixed;  // these are no int64s: nothing knows them
  for (int i = 0; i <= kMost; ++i) AppendField({.number = 3, .type = 5, .value = 1, .bytes = {}}, &fixed);
  EXPECT_FALSE(CheckMessageEntries({fixed}, schema, kMost).ok());
  std::string unknown;
  for (int i = 0; i <= kMost; ++i) AppendField({.number = 99, .type = 0, .value = 1, .bytes = {}}, &unknown);
  EXPECT_FALSE(CheckMessageEntries({unknown}, schema, kMost).ok());
}

TEST(MessageEntries, MayNotBeNestedWithoutEnd) {
  v1::LayerSpec layer;
  for (int i = 0; i < 101; ++i) {
    v1::LayerSpec outer;
    *outer.add_layers() = std::move(layer);
    layer = std::move(outer);
  }
  EXPECT_EQ(ReasonOf(CheckMessageEntries({layer.SerializeAsString()}, v1::LayerSpec::descriptor())), "FIELD_INVALID");
  EXPECT_TRUE(CheckMessageEntries({layer.layers(0).layers(0).SerializeAsString()}, v1::LayerSpec::descriptor()).ok());
}

TEST(DecodeInputs, TellsEachLie) {
  const auto refuse = [](auto change) {
    inference::ModelInferRequest request;
    request.ParseFromString(InferBytes());
    change(&request);
    const std::string bytes = request.SerializeAsString();
    const auto split = SplitRequest({bytes});
    EXPECT_TRUE(split.ok());
    const auto inputs = DecodeInputs(*split);
    EXPECT_FALSE(inputs.ok());
    return ReasonOf(inputs.status()) + " " + ValuesOf(inputs.status())["field"];
  };
  using Request = inference::ModelInferRequest;
  EXPECT_EQ(refuse([](Request* r) { r->mutable_inputs(1)->set_datatype("FP8"); }), "TENSOR_HEADER inputs[1].datatype");
  EXPECT_EQ(refuse([](Request* r) { r->mutable_inputs(1)->set_datatype("BYTES"); }),
            "TENSOR_HEADER inputs[1].datatype");
  EXPECT_EQ(refuse([](Request* r) { r->mutable_inputs(0)->set_shape(0, -1); }), "TENSOR_HEADER inputs[0].shape[0]");
  EXPECT_EQ(refuse([](Request* r) { r->mutable_inputs(0)->set_shape(0, 3); }), "TENSOR_HEADER inputs[0].data");
  EXPECT_EQ(refuse([](Request* r) {
              r->mutable_inputs(0)->set_shape(0, int64_t{1} << 62);
              r->mutable_inputs(0)->add_shape(4);
            }),
            "TENSOR_HEADER inputs[0].shape");
  EXPECT_EQ(refuse([](Request* r) { r->mutable_inputs(1)->set_name("a"); }), "TENSOR_HEADER inputs[1].name");
  EXPECT_EQ(refuse([](Request* r) { r->add_raw_input_contents("12345678"); }), "FIELD_INVALID raw_input_contents");
  EXPECT_EQ(refuse([](Request* r) { r->mutable_inputs(0)->mutable_contents()->add_fp32_contents(1); }),
            "FIELD_INVALID inputs[0].contents");
  EXPECT_EQ(refuse([](Request* r) { r->clear_raw_input_contents(); }), "TENSOR_HEADER inputs[0].contents");
}

TEST(DecodeInputs, TakesNumbersThatFit) {
  inference::ModelInferRequest request;
  auto* input = request.add_inputs();
  input->set_name("a");
  input->set_datatype("INT8");
  input->add_shape(2);
  input->mutable_contents()->add_int_contents(-128);
  input->mutable_contents()->add_int_contents(127);
  const std::string good = request.SerializeAsString();
  const auto inputs = DecodeInputs(*SplitRequest({good}));
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ(std::get<at::Tensor>((*inputs)[0].source).const_data_ptr<int8_t>()[0], -128);
  input->mutable_contents()->set_int_contents(1, 128);
  const std::string bad = request.SerializeAsString();
  EXPECT_EQ(ReasonOf(DecodeInputs(*SplitRequest({bad})).status()), "TENSOR_HEADER");
}

}  // namespace
}  // namespace penstock
