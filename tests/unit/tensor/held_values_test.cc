// Results as a handle holds them: sorted, named, counted.

#include "engine/tensor/held_values.h"

#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> NamesOf(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors) names.push_back(tensor.name);
  return names;
}

NamedValues One(Value value) {
  NamedValues values;
  values.push_back({"out", std::move(value)});
  return values;
}

TEST(HeldValues, TensorsInsideOfValuesGetNamesOfTheirOwn) {
  const at::Tensor a = at::zeros({2});
  const at::Tensor b = at::zeros({3});
  NamedValues results;
  results.push_back({"state.0", Value(a)});  // the name that the first one inside would have
  results.push_back(
      {"state", Value::List({Value(b), Value(), Value::Dict({{"again", Value(b)}, {"more", Value(a)}})})});
  results.push_back({"none", Value::List({Value(), Value("text")})});
  results.push_back({"logits", Value(b)});
  const absl::StatusOr<HeldValues> held = HoldValues(results);
  ASSERT_TRUE(held.ok()) << held.status();
  // Each once; what is a result by itself is not looked up among those inside.
  EXPECT_THAT(NamesOf(held->tensors), ElementsAre("state.0", "logits", "state.1", "state.2"));
  EXPECT_TRUE(held->tensors[2].tensor.is_same(b) && held->tensors[3].tensor.is_same(a));
  EXPECT_EQ(held->own_tensors, 2u);
  EXPECT_EQ(held->size(), 4u);
  EXPECT_EQ(held->values.size(), 2u);
  EXPECT_EQ(held->value_bytes, 9 * 64 + 5 + 4 + 4) << "nine values, two keys and a text";
  EXPECT_TRUE(held->FindTensor("state.2")->is_same(a));
  EXPECT_EQ(held->FindTensor("state"), nullptr);
  EXPECT_EQ(held->FindValue("state")->list()->size(), 3u);
  EXPECT_EQ(held->FindTensor(""), nullptr) << "one of four";
  EXPECT_EQ(held->FindValue(""), nullptr);
}

TEST(HeldValues, TheOnlyResultNeedsNoName) {
  const HeldValues tensor = HoldValues(One(Value(at::zeros({2})))).value();
  EXPECT_NE(tensor.FindTensor(""), nullptr);
  EXPECT_EQ(tensor.FindValue(""), nullptr);
  const HeldValues list = HoldValues(One(Value::List({Value(at::zeros({2}))}))).value();
  EXPECT_EQ(list.FindTensor(""), nullptr) << "the list is the result";
  EXPECT_NE(list.FindValue(""), nullptr);
  const HeldValues uploaded = NamedTensors{{"x", at::zeros({2})}};
  EXPECT_NE(uploaded.FindTensor(""), nullptr);
}

TEST(HeldValues, WhatGoesBeyondALimitIsNamed) {
  const HeldLimits limits = {.depth = 3, .values = 6, .text_bytes = 11, .tensors = 2};
  const auto tensors = [](int count) {
    ValueList list;
    for (int i = 0; i < count; ++i) list.emplace_back(at::full({1}, i));
    return Value::List(std::move(list));
  };
  EXPECT_TRUE(HoldValues(One(Value::List({Value::Tuple({Value("12345")})})), limits).ok());
  EXPECT_TRUE(HoldValues(One(tensors(2)), limits).ok());
  const at::Tensor same = at::zeros({1});
  const std::pair<Value, std::string> cases[] = {
      {Value::List({Value::Tuple({Value::List({Value(1)})})}), "be nested at most 3 deep"},
      {Value::List({Value(1), Value(2), Value(3), Value(4), Value(5), Value()}), "hold at most 6 values"},
      {Value::Dict({{"123456", Value("789012")}}), "hold at most 11 bytes of text"},
      {Value::List({Value(same), Value(same), Value(same)}), "hold at most 11 bytes of text"},  // "out.0" three times
      {tensors(3), "hold at most 2 tensors inside of lists and dictionaries"},
  };
  for (const auto& [value, problem] : cases) {
    const absl::Status refused = HoldValues(One(value), limits).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(refused), "MESSAGE_TOO_LARGE");
    EXPECT_EQ(ValuesOf(refused)["field"], "outputs[out]");
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(problem));
  }
}

TEST(HeldValues, WhatNoMessageCanCarryIsNamed) {
  EXPECT_TRUE(
      HoldValues(One(Value::List({Value("ü\n"), Value::Dict({{"a", Value(1)}}), Value::Dict({{"a", Value(1)}})})))
          .ok());
  const std::tuple<Value, std::string, std::string> cases[] = {
      {Value::List({Value("a\xff")}), "outputs[out]: texts must be UTF-8, got \"", "a"},
      {Value::Dict({{"\xc3", Value(1)}}), "outputs[out]: texts must be UTF-8, got \"", ""},
      {Value::Tuple({Value::Dict({{"a", Value(1)}, {"b", Value()}, {"a", Value(2)}})}),
       "outputs[out]: no key of a dictionary may come twice, got \"a\"", "a"},
  };
  for (const auto& [value, sentence, shown] : cases) {
    const absl::Status refused = HoldValues(One(value)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(refused), "WRONG_TYPE");
    EXPECT_EQ(ValuesOf(refused)["field"], "outputs[out]");
    EXPECT_THAT(std::string(refused.message()), ::testing::StartsWith(sentence));
    EXPECT_THAT(ValuesOf(refused)["value"], ::testing::StartsWith(shown));
    EXPECT_TRUE(IsUtf8(std::string(refused.message())));
  }
}

TEST(HeldValues, MapReachesEveryTensorAndLeavesTheRest) {
  const Value value = Value::Tuple({Value::List({Value(at::zeros({1})), Value(WholeTensor{at::zeros({1})})}),
                                    Value::Dict({{"a", Value(at::zeros({1}))}, {"b", Value("text")}}), Value(2.5)});
  int met = 0;
  const Value mapped = value.MapTensors([&met](const at::Tensor& tensor) { return at::full_like(tensor, ++met); });
  EXPECT_EQ(met, 3);
  EXPECT_EQ(mapped.tuple()->at(0).list()->at(0).tensor()->item().toInt(), 1);
  EXPECT_EQ(mapped.tuple()->at(0).list()->at(1).whole()->item().toInt(), 2);
  EXPECT_EQ(mapped.tuple()->at(1).dict()->at(0).second.tensor()->item().toInt(), 3);
  EXPECT_EQ(*mapped.tuple()->at(1).dict()->at(1).second.text(), "text");
  EXPECT_EQ(value.tuple()->at(0).list()->at(0).tensor()->item().toInt(), 0) << "unchanged";
}

}  // namespace
}  // namespace penstock
