// Skip connections: what RunLayer sees to, and the static check.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/run_layer.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A layer that declares skips and does with them what a test says.
class SkipLayer : public Layer {
 public:
  using Work = std::function<Batch(const Batch&, LayerSkips&)>;

  SkipLayer(const std::vector<std::string>& stashes, const std::vector<std::string>& pops, Work work = nullptr)
      : work_(std::move(work)) {
    for (const std::string& name : stashes) DeclareStash(name);
    for (const std::string& name : pops) DeclarePop(name);
  }
  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    return work_ == nullptr ? inputs : work_(inputs, *context.skips);
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }

 private:
  const Work work_;
};

NamedLayer Named(const std::vector<std::string>& stashes, const std::vector<std::string>& pops,
                 SkipLayer::Work work = nullptr, const std::string& name = "layer") {
  return {name, std::make_unique<SkipLayer>(stashes, pops, std::move(work))};
}

SkipLayer::Work Stashes(const std::string& name) {
  return [name](const Batch& inputs, LayerSkips& skips) {
    skips.Stash(name, inputs[0]);
    return Batch(inputs[0].tensor()->mul(2));
  };
}

SkipLayer::Work Pops(const std::string& name) {
  return [name](const Batch&, LayerSkips& skips) { return Batch(skips.Pop(name)); };
}

// The one place of SKIP-4: the sentence, and that it is a fault of the state.
void ExpectFault(const NamedLayer& layer, SkipTracker& tracker, const std::string& sentence) {
  const absl::Status status = RunTorch([&] { RunLayer(layer, Batch(at::ones({1})), {}, tracker); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(ReasonOf(status), "SKIP_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
}

TEST(RunLayer, CarriesWhatIsStashed) {
  SkipTracker tracker;
  EXPECT_TRUE(tracker.empty());
  const Batch made = RunLayer(Named({"foo"}, {}, Stashes("foo")), Batch(at::full({1}, 42)), {}, tracker);
  EXPECT_EQ(made.TensorAt(0).item<float>(), 84);
  EXPECT_FALSE(tracker.empty()) << "saved after the layer";
  EXPECT_EQ(RunLayer(Named({}, {"foo"}, Pops("foo")), made, {}, tracker).TensorAt(0).item<float>(), 42);
  EXPECT_TRUE(tracker.empty());
}

TEST(RunLayer, NamesWhatIsNotDeclaredStashedOrPopped) {
  SkipTracker tracker;
  ExpectFault(Named({}, {}, Stashes("foo")), tracker, "'foo' has not been declared as stashable");
  ExpectFault(Named({}, {}, Pops("foo")), tracker, "'foo' has not been declared as poppable");
  ExpectFault(Named({}, {"foo"}, Pops("foo")), tracker, "'foo' has not been stashed");
  ExpectFault(Named({"foo", "bar"}, {}), tracker, "'foo', 'bar' must be stashed but have not");
  EXPECT_TRUE(tracker.empty()) << "a layer that failed has saved nothing";
  tracker.Put({"", "foo"}, at::ones({1}));
  ExpectFault(Named({}, {"foo"}), tracker, "'foo' must be popped but have not");
}

TEST(RunLayer, LastStashWinsAndASecondPopFails) {
  SkipTracker tracker;
  const auto twice = [](const Batch& inputs, LayerSkips& skips) {
    skips.Stash("foo", 1);
    skips.Stash("foo", 2);
    return inputs;
  };
  RunLayer(Named({"foo"}, {}, twice), Batch(at::ones({1})), {}, tracker);
  const auto pop_twice = [](const Batch& inputs, LayerSkips& skips) {
    EXPECT_EQ(*skips.Pop("foo").integer(), 2);
    skips.Pop("foo");
    return inputs;
  };
  ExpectFault(Named({}, {"foo"}, pop_twice), tracker, "'foo' has not been stashed");
}

TEST(RunLayer, WorksWithoutAPipeline) {
  const auto layers = *BuildLayers({{"stash", "keep", {}}, {"relu", "relu", {}}, {"pop_add", "add", {}}}, 0);
  SkipTracker tracker;
  const at::Tensor input = at::full({2, 3}, -1.5).requires_grad_(true);
  Batch values = input;
  for (const NamedLayer& layer : layers) values = RunLayer(layer, values, {}, tracker);
  EXPECT_TRUE(values.TensorAt(0).equal(input)) << "nothing is left after the ReLU but what was kept";
  values.TensorAt(0).sum().backward();
  EXPECT_TRUE(input.grad().equal(at::ones({2, 3})));
}

TEST(RunLayer, NoneIsStashedAndPopped) {
  SkipTracker tracker;
  const auto none = [](const Batch& inputs, LayerSkips& skips) {
    skips.Stash("skip", Value());
    return inputs;
  };
  const auto pop = [](const Batch& inputs, LayerSkips& skips) {
    EXPECT_TRUE(skips.Pop("skip").is_none());
    return inputs;
  };
  RunLayer(Named({"skip"}, {}, none), Batch(at::ones({1})), {}, tracker);
  EXPECT_FALSE(tracker.empty());
  RunLayer(Named({}, {"skip"}, pop), Batch(at::ones({1})), {}, tracker);

  for (const char* kind : {"pop_add", "pop_cat"}) {
    const auto layers = *BuildLayers({{kind, "pop", {}}}, 0);
    RunLayer(Named({"skip"}, {}, none), Batch(at::ones({1})), {}, tracker);
    const at::Tensor input = at::rand({2, 3});
    EXPECT_TRUE(RunLayer(layers[0], Batch(input), {}, tracker).TensorAt(0).is_same(input)) << kind;
  }
}

TEST(RunLayer, StashAndPopCatJoinChannelsAndPadWhatIsSmaller) {
  const auto layers = *BuildLayers(
      {{"stash", "keep", {{"name", std::string("up")}}}, {"pop_cat", "join", {{"name", std::string("up")}}}}, 0);
  SkipTracker tracker;
  const at::Tensor kept = at::rand({2, 3, 5, 7});
  EXPECT_TRUE(RunLayer(layers[0], Batch(kept), {}, tracker).TensorAt(0).is_same(kept));
  const at::Tensor input = at::rand({2, 1, 4, 6});
  const at::Tensor joined = RunLayer(layers[1], Batch(input), {}, tracker).TensorAt(0);
  EXPECT_EQ(joined.sizes(), at::IntArrayRef({2, 4, 5, 7}));
  EXPECT_TRUE(joined.narrow(1, 1, 3).equal(kept));
  EXPECT_TRUE(joined.narrow(1, 0, 1).narrow(2, 0, 4).narrow(3, 0, 6).equal(input));
  EXPECT_EQ(joined.narrow(1, 0, 1).count_nonzero().item<int64_t>(), input.count_nonzero().item<int64_t>())
      << "zeros around";
}

TEST(Stash, KeepsSeveralValuesAsATuple) {
  const auto layers = *BuildLayers({{"stash", "keep", {}}, {"pop_add", "add", {}}}, 0);
  SkipTracker tracker;
  RunLayer(layers[0], Batch::Tuple({Value(at::ones({1})), Value(3)}), {}, tracker);
  const absl::Status status = RunTorch([&] { RunLayer(layers[1], Batch(at::ones({1})), {}, tracker); });
  EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected Tensor, but got tuple"));
}

TEST(SkipName, NamespacesAreOrderedEqualAndNoneIsTheDefault) {
  const SkipName plain{"", "a"};
  const SkipName one{"one", "a"};
  const SkipName two{"two", "a"};
  const SkipName copy = one;
  EXPECT_EQ(copy, one);
  EXPECT_NE(one, two);
  EXPECT_LT(plain, one);
  EXPECT_LT(one, two);
  SkipTracker tracker;
  tracker.Put(one, 1);
  EXPECT_FALSE(tracker.Take(plain).has_value());
  EXPECT_FALSE(tracker.Take(two).has_value());
  EXPECT_EQ(*tracker.Take(copy)->integer(), 1);
  EXPECT_TRUE(SkipLayer({"a"}, {}).skips().stashes[0].skip_namespace.empty());
}

TEST(Layer, IsolatesAllOrListedNamesAndTheLastOneWins) {
  SkipLayer layer({"alice", "bob"}, {"carol"});
  layer.Isolate({.skip_namespace = "all", .only = {}});
  EXPECT_THAT(layer.skips().stashes, ElementsAre(SkipName{"all", "alice"}, SkipName{"all", "bob"}));
  EXPECT_THAT(layer.skips().pops, ElementsAre(SkipName{"all", "carol"}));
  layer.Isolate({.skip_namespace = "hers", .only = {"alice", "carol"}});
  layer.Isolate({.skip_namespace = "last", .only = {"carol"}});
  EXPECT_THAT(layer.skips().stashes, ElementsAre(SkipName{"hers", "alice"}, SkipName{"all", "bob"}));
  EXPECT_THAT(layer.skips().pops, ElementsAre(SkipName{"last", "carol"}));
}

TEST(BuildLayers, IsolatesAsTheSpecificationSays) {
  const auto layers =
      *BuildLayers({{"stash", "a", {}, "", {{"one"}}}, {"pop_add", "b", {}, "", {{"one"}, {"two", {"skip"}}}}}, 0);
  EXPECT_THAT(layers[0].layer->skips().stashes, ElementsAre(SkipName{"one", "skip"}));
  EXPECT_THAT(layers[1].layer->skips().pops, ElementsAre(SkipName{"two", "skip"}));
}

TEST(Layer, DeclaresInTheOrderOfDeclaration) {
  const SkipDeclaration declared = SkipLayer({"z", "a", "m"}, {"y", "b"}).skips();
  EXPECT_THAT(declared.stashes, ElementsAre(SkipName{"", "z"}, SkipName{"", "a"}, SkipName{"", "m"}));
  EXPECT_THAT(declared.pops, ElementsAre(SkipName{"", "y"}, SkipName{"", "b"}));
  SkipTracker tracker;
  ExpectFault(Named({"z", "a", "m"}, {}), tracker, "'z', 'a', 'm' must be stashed");
}

// What one layer declares, in short.
SkipDeclaration Declares(std::vector<std::string> stashes, std::vector<std::string> pops,
                         const std::string& skip_namespace = "") {
  SkipDeclaration declaration;
  for (std::string& name : stashes) declaration.stashes.push_back({skip_namespace, std::move(name)});
  for (std::string& name : pops) declaration.pops.push_back({skip_namespace, std::move(name)});
  return declaration;
}

absl::Status Check(const std::vector<SkipDeclaration>& declarations) {
  std::vector<std::string> names;
  for (size_t i = 0; i < declarations.size(); ++i) names.push_back(std::to_string(i));
  return CheckSkips(names, declarations);
}

void ExpectFaults(const std::vector<SkipDeclaration>& declarations, const std::string& faults) {
  const absl::Status status = Check(declarations);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
  EXPECT_EQ(ValuesOf(status)["field"], "spec.model.layers");
  EXPECT_EQ(std::string(status.message()), "one or more pairs of stash and pop do not match:\n\n" + faults);
}

TEST(CheckSkips, Matching) { EXPECT_TRUE(Check({Declares({"foo"}, {}), Declares({}, {"foo"})}).ok()); }

TEST(CheckSkips, StashNotPop) {
  ExpectFaults({Declares({"foo"}, {})}, "* no module declared 'foo' as poppable but stashed");
}

TEST(CheckSkips, PopUnknown) {
  ExpectFaults({Declares({}, {"foo"})}, "* '0' declared 'foo' as poppable but it was not stashed");
  ExpectFaults({Declares({}, {"foo"}), Declares({"foo"}, {})},
               "* '0' declared 'foo' as poppable but it was not stashed\n"
               "* no module declared 'foo' as poppable but stashed");
}

TEST(CheckSkips, StashAgain) {
  ExpectFaults({Declares({"foo"}, {}), Declares({"foo"}, {}), Declares({}, {"foo"})},
               "* '1' redeclared 'foo' as stashable but not isolated by namespace");
}

TEST(CheckSkips, PopAgain) {
  ExpectFaults({Declares({"foo"}, {}), Declares({}, {"foo"}), Declares({}, {"foo"})},
               "* '2' redeclared 'foo' as poppable but not isolated by namespace");
}

TEST(CheckSkips, StashPopTogetherDifferentNames) {
  EXPECT_TRUE(Check({Declares({"foo"}, {}), Declares({"bar"}, {"foo"}), Declares({}, {"bar"})}).ok());
}

TEST(CheckSkips, StashPopTogetherSameName) {
  ExpectFaults({Declares({"foo"}, {"foo"})}, "* '0' declared 'foo' both as stashable and as poppable");
}

TEST(CheckSkips, DoubleStashPopHasAllFaults) {
  ExpectFaults({Declares({"foo"}, {}), Declares({}, {"foo"}), Declares({"foo"}, {}), Declares({}, {"foo"})},
               "* '2' redeclared 'foo' as stashable but not isolated by namespace\n"
               "* '3' redeclared 'foo' as poppable but not isolated by namespace");
}

TEST(CheckSkips, DoubleStashPopButIsolated) {
  EXPECT_TRUE(Check({Declares({"foo"}, {}, "one"), Declares({}, {"foo"}, "one"), Declares({"foo"}, {}, "two"),
                     Declares({}, {"foo"}, "two")})
                  .ok());
}

}  // namespace
}  // namespace penstock
