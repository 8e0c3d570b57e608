// Values of the wire: there and back, and what is refused.

#include "server/rpc/convert/value_convert.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "google/protobuf/text_format.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

v1::Value TextValue(const std::string& text) {
  v1::Value value;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &value)) << text;
  return value;
}

absl::StatusOr<Value> ReadValue(const v1::Value& value, std::vector<HandleTensor>* inside) {
  return FromProto(value, "inputs[0].value", inside);
}

absl::Status RefusedValue(const v1::Value& value) {
  std::vector<HandleTensor> inside;
  return ReadValue(value, &inside).status();
}

v1::Value NestedValue(int depth) {
  v1::Value outer;
  v1::Value* inner = &outer;
  for (int i = 1; i < depth; ++i) inner = inner->mutable_list()->add_items();
  inner->set_int_value(1);
  return outer;
}

TEST(ValueConvert, EveryKindGoesThereAndBack) {
  const v1::Value message = TextValue(R"(
      dict {
        entries { name: "flag" value { bool_value: false } }
        entries { name: "count" value { int_value: -3 } }
        entries { name: "rate" value { double_value: 0.5 } }
        entries { name: "word" value { string_value: "" } }
        entries { name: "nothing" value {} }
        entries { name: "list" value { list { items { int_value: 1 } items {} } } }
        entries { name: "tuple" value { tuple {} } }
        entries { name: "dict" value { dict {} } }
      })");
  std::vector<HandleTensor> inside;
  const absl::StatusOr<Value> read = ReadValue(message, &inside);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->dict()->at(4).second.is_none());
  EXPECT_EQ(read->dict()->at(6).second.tuple()->size(), 0u);
  NamedValues results;
  results.push_back({"out", *read});
  const auto written = ToProto(HoldValues(results).value());
  ASSERT_EQ(written.size(), 1);
  EXPECT_EQ(written[0].name(), "out");
  EXPECT_EQ(written[0].value().SerializeAsString(), message.SerializeAsString());
}

TEST(ValueConvert, TensorsOfTheMessageAndOfHandlesStandInOrder) {
  const std::string handle = "pipelines/p/handles/00000001-00000000000000000000000000000001";
  v1::Value message;
  *message.mutable_list()->add_items() =
      TextValue(R"(tensor { header { type: DATA_TYPE_UINT8 shape: 2 byte_size: 2 } data: "ab" })");
  for (const char* tensor : {"first", ""}) {
    v1::HandleTensor* reference = message.mutable_list()->add_items()->mutable_handle();
    reference->set_handle(handle);
    reference->set_tensor(tensor);
  }
  std::vector<HandleTensor> inside;
  const absl::StatusOr<Value> read = ReadValue(message, &inside);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(inside.size(), 2u);
  EXPECT_EQ(inside[0].tensor, "first");
  EXPECT_EQ(inside[0].field, "inputs[0].value.list.items[1].handle");
  EXPECT_EQ(inside[1].field, "inputs[0].value.list.items[2].handle");
  EXPECT_EQ(read->list()->at(0).tensor()->numel(), 2);
  EXPECT_FALSE(read->list()->at(1).tensor()->defined());

  NamedValues results;
  const at::Tensor tensor = at::zeros({2});
  results.push_back({"out", Value::List({Value(tensor), Value::Tuple({Value(tensor)})})});
  const auto written = ToProto(HoldValues(results).value());
  EXPECT_EQ(written[0].value().list().items(0).handle().tensor(), "out.0");
  EXPECT_EQ(written[0].value().list().items(0).handle().handle(), "") << "the result's own";
  EXPECT_EQ(written[0].value().list().items(1).tuple().items(0).handle().tensor(), "out.0");
}

TEST(ValueConvert, ATensorThatIsAlsoAResultByItselfIsNamedAsThatInside) {
  const at::Tensor tensor = at::zeros({2});
  NamedValues results;
  results.push_back({"logits", Value(tensor)});
  results.push_back({"state", Value::List({Value(tensor)})});
  results.push_back({"count", Value(3)});
  const HeldValues held = HoldValues(results).value();
  EXPECT_EQ(ToProto(held)[0].value().list().items(0).handle().tensor(), "state.0");

  // One value by its name.
  const auto one = ToProto(held, "count");
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one[0].value().int_value(), 3);
  EXPECT_EQ(ToProto(held, "logits").size(), 0) << "a tensor is no value";
}

TEST(ValueConvert, WhatCanNotBeIsNamed) {
  EXPECT_TRUE(RefusedValue(NestedValue(16)).ok());
  v1::Value text;
  text.mutable_list()->add_items()->set_string_value(std::string(65'536, 'x'));
  EXPECT_TRUE(RefusedValue(text).ok());
  v1::Value long_text;
  long_text.mutable_list()->add_items()->set_string_value(std::string(65'537, 'x'));
  v1::Value long_key;
  long_key.mutable_dict()->add_entries()->set_name(std::string(65'537, 'x'));
  v1::Value many;
  for (int i = 0; i < 1'025; ++i) {
    many.mutable_list()->add_items()->mutable_handle()->set_handle(
        "pipelines/p/handles/00000001-00000000000000000000000000000001");
  }
  std::string deepest = "inputs[0].value";
  for (int i = 0; i < 16; ++i) deepest += ".list.items[0]";
  const std::tuple<v1::Value, std::string, std::string> cases[] = {
      {NestedValue(17), deepest, "must be nested at most 16 deep"},
      {long_text, "inputs[0].value.list.items[0].string_value", "must have at most 65536 bytes"},
      {long_key, "inputs[0].value.dict.entries[0].name", "must have at most 65536 bytes"},
      {TextValue(R"(dict { entries { name: "a" } entries { name: "b" } entries { name: "a" } })"),
       "inputs[0].value.dict.entries[2].name", "must not repeat"},
      {TextValue("tensor {}"), "inputs[0].value.tensor", "belongs into the input itself"},
      {TextValue("handle {}"), "inputs[0].value.handle", "belongs into the input itself"},
      {TextValue(R"(list { items { handle { handle: "x" } } })"), "inputs[0].value.list.items[0].handle.handle", ""},
      {TextValue(R"(list { items { tensor { header { type: DATA_TYPE_FP32 shape: 2 byte_size: 7 } } } })"),
       "inputs[0].value.list.items[0].tensor.byte_size", ""},
      {many, "inputs[0].value.list.items[1024].handle", "must be one of at most 1024"},
  };
  for (const auto& [value, field, problem] : cases) {
    const absl::Status refused = RefusedValue(value);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(ValuesOf(refused)["field"], field);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(problem));
    EXPECT_LT(refused.message().size(), 1'000u);
  }
}

}  // namespace
}  // namespace penstock
