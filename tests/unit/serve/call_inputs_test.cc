// The values of a call that stand behind handles: each handle is pinned once, and errors name where it stands.

#include "engine/serve/call_inputs.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/base/timer_queue.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {
namespace {

class CallInputsTest : public ::testing::Test {
 protected:
  HandleName Put(NamedTensors tensors) {
    const HandleName name = store_.Reserve({.owner = "ann", .pipeline = "gpt"}).value();
    store_.Fulfil(name.id, std::move(tensors));
    return name;
  }

  // An input whose value is a list of tensors behind handles.
  static InputSource ListOf(std::vector<HandleTensor> inside) {
    InputSource source{.name = "cache"};
    source.source = Value::List(ValueList(inside.size(), Value(at::Tensor())));
    source.inside = std::move(inside);
    return source;
  }

  absl::StatusOr<CallInputs> Make(std::vector<InputSource> sources) {
    return CallInputs::Make(&store_, "ann", std::move(sources), "inputs");
  }

  FakeClock clock_;
  TimerQueue timers_{&clock_};
  HandleStore store_{{}, &clock_, &timers_};
};

TEST_F(CallInputsTest, AHandleIsPinnedOnceHoweverOftenItStandsThere) {
  NamedTensors many;
  for (int i = 0; i < 1'024; ++i) many.push_back({"t" + std::to_string(i), at::full({1}, i)});
  const HandleName large = Put(std::move(many));
  const HandleName small = Put({{"x", at::full({1}, -1)}});
  std::vector<HandleTensor> inside;
  for (int i = 0; i < 16'000; ++i) inside.push_back({large, "t" + std::to_string(i % 1'024)});
  inside.push_back({small, ""});
  std::vector<InputSource> sources;
  sources.push_back(ListOf(std::move(inside)));
  sources.push_back({.name = "again", .source = HandleTensor{large, "t7"}});
  absl::StatusOr<CallInputs> inputs = Make(std::move(sources));
  ASSERT_TRUE(inputs.ok()) << inputs.status();
  EXPECT_EQ(inputs->pin_count(), 2);
  const absl::StatusOr<NamedValues> taken = inputs->Take();
  ASSERT_TRUE(taken.ok()) << taken.status();
  const ValueList& list = *taken->at(0).value.list();
  ASSERT_EQ(list.size(), 16'001u);
  for (const int i : {0, 1'023, 1'024, 15'999}) EXPECT_EQ(list[i].tensor()->item().toInt(), i % 1'024);
  EXPECT_EQ(list[16'000].tensor()->item().toInt(), -1);
  EXPECT_EQ(taken->at(1).value.tensor()->item().toInt(), 7);
}

TEST_F(CallInputsTest, AppendedInputsKeepTheirOwnPins) {
  const HandleName a = Put({{"x", at::full({1}, 1)}});
  const HandleName b = Put({{"x", at::full({1}, 2)}});
  CallInputs all = *Make({{.name = "first", .source = HandleTensor{a, "x"}}});
  std::vector<InputSource> more;
  more.push_back(ListOf({{b, "x"}, {a, "x"}, {b, "x"}}));
  all.Append(*Make(std::move(more)));
  EXPECT_EQ(all.pin_count(), 3);
  const NamedValues taken = *all.Take();
  const ValueList& list = *taken[1].value.list();
  for (const size_t i : {0u, 1u, 2u}) EXPECT_EQ(list[i].tensor()->item().toInt(), i == 1 ? 1 : 2);
}

TEST_F(CallInputsTest, ErrorsNameThePlaceOfTheHandle) {
  const HandleName here = Put({{"x", at::full({1}, 1)}});
  const HandleName gone = {"gpt", RandomHandleId(store_.epoch())};
  const std::string place = "inputs[0].value.list.items[1].handle";
  std::vector<InputSource> refused;
  refused.push_back(ListOf({{here, "x", "inputs[0].value.list.items[0].handle"}, {gone, "x", place}}));
  const absl::Status not_found = Make(std::move(refused)).status();
  EXPECT_EQ(ReasonOf(not_found), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ValuesOf(not_found)["field"], place);

  std::vector<InputSource> lacking;
  lacking.push_back(ListOf({{here, "x", "inputs[0].value.list.items[0].handle"}, {here, "y", place}}));
  const absl::Status no_tensor = Make(std::move(lacking))->Take().status();
  EXPECT_EQ(ReasonOf(no_tensor), "TENSOR_SIGNATURE");
  EXPECT_EQ(ValuesOf(no_tensor)["field"], place + ".tensor");
  const absl::Status unnamed = Make({{.name = "x", .source = HandleTensor{gone, ""}}}).status();
  EXPECT_EQ(ValuesOf(unnamed)["field"], "inputs[0].handle");
}

}  // namespace
}  // namespace penstock::testing
