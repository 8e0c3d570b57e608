// Checkpointing seen from a whole pipe, by what layers are told and what gradients come out.

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/model/layer_registry.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerSpec Dropout(double p) { return Built("dropout", {{"p", p}}); }

struct Gradients {
  NamedValues inputs;
  NamedTensors outputs;
};

// Forward and backward with the outputs' gradients all ones.
Gradients ForwardAndBackward(Pipeline& pipeline, const NamedValues& inputs) {
  Gradients result;
  auto forward = pipeline.Forward(Ask(inputs, true));
  EXPECT_TRUE(forward.ok()) << forward.status();
  if (!forward.ok()) return result;
  NamedTensors ones;
  for (const NamedValue& output : forward->outputs) {
    const at::Tensor* tensor = output.value.tensor();
    if (tensor == nullptr) continue;
    result.outputs.push_back({output.name, *tensor});
    ones.push_back({output.name, at::ones(tensor->sizes(), tensor->options())});
  }
  auto backward = pipeline.Backward(forward->graph, ones, false);
  EXPECT_TRUE(backward.ok()) << backward.status();
  if (backward.ok()) result.inputs = backward->input_gradients;
  return result;
}

// --- CKPT-2 to 5 ---

TEST(PipeCheckpoint, LayersAreToldWhichPassItIs) {
  PipeWorld world;
  for (CheckpointMode mode : {CheckpointMode::kAlways, CheckpointMode::kNever}) {
    std::vector<std::string> log;  // (checkpointing, recomputing): the first pass of a checkpointed one has no graph
    const auto note = [&](const Batch& in, const LayerContext& context, const Tensors& weights) {
      log.push_back(
          absl::StrCat(at::GradMode::is_enabled() ? "graph" : "no graph", context.recomputing ? ", recomputing" : ""));
      return Batch(in.TensorAt(0).mul(weights[0]));
    };
    auto pipeline = world.Make(Pipe({Function({.forward = note, .parameters = {{1}}})}, {1}, 1, mode));
    ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({2, 1}), at::ones({2, 1})), {}).ok());
    if (mode == CheckpointMode::kAlways) {
      EXPECT_THAT(log, ElementsAre("no graph", "graph, recomputing"));
    } else {
      EXPECT_THAT(log, ElementsAre("graph"));
    }
  }
}

TEST(PipeCheckpoint, ParametersLearnIfNoInputRequiresGrad) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    for (const bool input_gradients : {false, true}) {
      const LayerSpec layer = Weighted();
      auto pipeline = world.Make(Pipe({layer}, {1}, 2, mode));
      auto forward = pipeline->Forward(Ask(Input(Range({4, 2})), input_gradients));
      auto backward = pipeline->Backward(forward->graph, {{"output", at::ones({4, 2})}}, false);
      ASSERT_TRUE(backward.ok()) << backward.status();
      EXPECT_TRUE(at::equal(ParametersOf(layer)[0].grad(),
                            Range({4, 2}).narrow(0, 0, 2).sum(0).add(Range({4, 2}).narrow(0, 2, 2).sum(0))));
      EXPECT_EQ(backward->input_gradients.size(), input_gradients ? 1 : 0);
    }
  }
}

TEST(PipeCheckpoint, WithoutParametersGradientsPassOrThereAreNone) {
  PipeWorld world;
  const auto twice = [](const Batch& in, const LayerContext&, const Tensors&) { return Batch(in.TensorAt(0).mul(2)); };
  for (CheckpointMode mode : kModes) {
    auto pipeline = world.Make(Pipe({Function(twice), Function(twice)}, {1, 1}, 2, mode));
    const Gradients gradients = ForwardAndBackward(*pipeline, Input(Range({4, 2})));
    EXPECT_TRUE(at::equal(*gradients.inputs.at(0).value.tensor(), at::ones({4, 2}).mul(4)));
    // Nobody asks, nothing learns: no error.
    auto outcome = pipeline->ForwardBackward(Contribution(Range({4, 2}), at::ones({4, 2})));
    EXPECT_TRUE(outcome.ok()) << outcome.status();
  }
}

TEST(PipeCheckpoint, RecomputationStartsFromDetachedInputsAndLeavesOuterStateAlone) {
  PipeWorld world;
  struct Seen {
    bool leaf, requires_grad;
    at::Tensor values, mask;
  };
  std::vector<Seen> seen;
  const auto note = [&](const Batch& in, const LayerContext& context, const Tensors& weights) {
    const at::Tensor& x = in.TensorAt(0);
    const at::Tensor mask = at::zeros(x.sizes()).bernoulli_(0.5, context.random->Next());
    seen.push_back({x.is_leaf(), x.requires_grad(), x.detach().clone(), mask});
    return Batch(x.mul(weights[0]).mul(mask));
  };
  auto pipeline = world.Make(
      Pipe({Weighted(), Function({.forward = note, .parameters = {{2}}})}, {1, 1}, 1, CheckpointMode::kAlways));
  at::Generator global = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor before = global.get_state();
  ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {}).ok());
  EXPECT_TRUE(at::equal(before, global.get_state()));  // CKPT-7: nothing was drawn from elsewhere
  ASSERT_EQ(seen.size(), 2);
  EXPECT_TRUE(seen[1].leaf);
  EXPECT_TRUE(seen[1].requires_grad);
  EXPECT_TRUE(at::equal(seen[0].values, seen[1].values));
  EXPECT_TRUE(at::equal(seen[0].mask, seen[1].mask));
}

TEST(PipeCheckpoint, NothingIsRunBackwardWhereNoOutputRequiresGrad) {
  PipeWorld world;
  const auto detach = [](const Batch& in, const LayerContext&, const Tensors&) {
    return Batch(in.TensorAt(0).detach());
  };
  for (CheckpointMode mode : kModes) {
    const LayerSpec first = Weighted();
    auto pipeline = world.Make(Pipe({first, Function(detach)}, {1, 1}, 2, mode));
    const Gradients gradients = ForwardAndBackward(*pipeline, Input(Range({4, 2})));
    EXPECT_TRUE(gradients.inputs.at(0).value.is_none());
    EXPECT_FALSE(ParametersOf(first)[0].grad().defined());
  }
}

// --- CKPT-8 to 13 ---

TEST(PipeCheckpoint, ARetainedGraphGoesBackwardTwiceWithEqualGradients) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    SCOPED_TRACE(ModeName(mode));
    const LayerSpec weighted = Weighted();
    auto pipeline = world.Make(Pipe({weighted, Dropout(0.5), Weighted()}, {1, 2}, 2, mode));
    auto forward = pipeline->Forward(Ask(Input(Range({4, 2})), true));
    ASSERT_TRUE(forward.ok()) << forward.status();
    const NamedTensors ones = {{"output", at::ones({4, 2})}};
    auto first = pipeline->Backward(forward->graph, ones, true);
    ASSERT_TRUE(first.ok()) << first.status();
    const at::Tensor once = ParametersOf(weighted)[0].grad().clone();
    auto second = pipeline->Backward(forward->graph, ones, false);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_TRUE(at::equal(*first->input_gradients[0].value.tensor(), *second->input_gradients[0].value.tensor()));
    EXPECT_TRUE(at::allclose(ParametersOf(weighted)[0].grad(), once.mul(2)));
    EXPECT_GT(once.abs().sum().item().toDouble(), 0);
    EXPECT_EQ(ReasonOf(pipeline->Backward(forward->graph, ones, false).status()), "GRAPH_CONSUMED");
  }
}

TEST(PipeCheckpoint, AutocastIsTheSameInForwardAndRecomputation) {
  PipeWorld serial;
  PipeWorld threads(DevicePool::Mode::kThreads);
  for (PipeWorld* world : {&serial, &threads}) {
    for (const std::string autocast : {"", "bf16"}) {
      absl::Mutex mu;
      std::vector<std::string> log;
      const auto note = [&](const Batch& in, const LayerContext& context, const Tensors& weights) {
        const at::Tensor y = at::linear(in.TensorAt(0), weights[0]);
        absl::MutexLock lock(&mu);
        log.push_back(absl::StrCat(context.recomputing ? "again " : "", c10::toString(y.scalar_type())));
        return Batch(y.to(at::kFloat));
      };
      PipelineSpec spec =
          Pipe({Linear(2, 2), Function({.forward = note, .parameters = {{2, 2}}})}, {1, 1}, 1, CheckpointMode::kAlways);
      spec.model.autocast = autocast;
      auto pipeline = world->Make(spec);
      log.clear();
      ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {}).ok());
      if (autocast.empty()) {
        EXPECT_THAT(log, ElementsAre("Float", "again Float"));
      } else {
        EXPECT_THAT(log, ElementsAre("BFloat16", "again BFloat16"));
      }
      PlainReference plain = PlainOf(spec);
      plain.TrainStep({Value(Range({4, 2}))}, at::ones({4, 2}), 1);
      EXPECT_TRUE(SameState(*pipeline, plain)) << autocast;
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));  // the caller's thread is as it was
    }
  }
}

TEST(PipeCheckpoint, GradientsGoByPositionWhereverTheOneWithoutStands) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    for (int without : {0, 1, 2}) {  // the place of the output that has no gradient
      SCOPED_TRACE(absl::StrCat(ModeName(mode), " ", without));
      const auto split = [=](const Batch& in, const LayerContext&, const Tensors& weights) {
        std::vector<Value> values;
        for (int i = 0; i < 3; ++i) {
          const at::Tensor y = in.TensorAt(0).mul(weights[0]).mul(i + 2);
          values.emplace_back(i == without ? y.gt(1) : y);
        }
        return Batch::Tuple(std::move(values));
      };
      const auto join = [=](const Batch& in, const LayerContext&, const Tensors&) {
        at::Tensor sum = in.TensorAt(without).to(at::kFloat);
        for (int i = 0; i < 3; ++i) {
          EXPECT_FALSE(i == without && in.TensorAt(i).requires_grad());
          if (i != without) sum = sum.add(in.TensorAt(i).pow(i + 1));
        }
        return Batch(sum);
      };
      const PipelineSpec spec =
          Pipe({Function({.forward = split, .parameters = {{2}}}), Function(join)}, {1, 1}, 2, mode);
      auto pipeline = world.Make(spec);
      PlainReference plain = PlainOf(spec);
      ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({4, 2}), at::zeros({4, 2})), {}).ok());
      plain.TrainStep({Value(Range({4, 2}))}, at::zeros({4, 2}), 2);
      EXPECT_TRUE(SameState(*pipeline, plain));
    }
  }
}

TEST(PipeCheckpoint, TheModelsOutputsMayMix) {
  PipeWorld world;
  const auto mixed = [](const Batch& in, const LayerContext&, const Tensors&) {
    return Batch::Tuple({Value(in.TensorAt(0).gt(0.5)), Value(in.TensorAt(0).mul(2))});
  };
  for (CheckpointMode mode : kModes) {
    auto pipeline = world.Make(Pipe({Function(mixed), Function(PassOn)}, {1, 1}, 2, mode));
    auto forward = pipeline->Forward(Ask(Input(Range({4, 2})), true));
    ASSERT_TRUE(forward.ok()) << forward.status();
    EXPECT_EQ(forward->outputs.at(0).value.tensor()->scalar_type(), at::kBool);
    const NamedTensors gradients = {{"output0", at::zeros({4, 2}, at::kBool)}, {"output1", at::ones({4, 2})}};
    auto backward = pipeline->Backward(forward->graph, gradients, false);
    ASSERT_TRUE(backward.ok()) << backward.status();
    EXPECT_TRUE(at::equal(*backward->input_gradients.at(0).value.tensor(), at::ones({4, 2}).mul(2)));
  }
}

TEST(PipeCheckpoint, NonTensorsReachTheRecomputationAsTheyAre) {
  PipeWorld world;
  std::vector<const ValueList*> lists;
  const auto note = [&](const Batch& in, const LayerContext&, const Tensors& weights) {
    lists.push_back(in[1].list());
    return Batch(in.TensorAt(0).mul(weights[0]).mul(*in[2].integer()));
  };
  auto pipeline = world.Make(
      Pipe({Function(PassOn), Function({.forward = note, .parameters = {{2}}})}, {1, 1}, 1, CheckpointMode::kAlways));
  ForwardAndBackward(*pipeline, Inputs({Value(Range({4, 2})), Value::List({Value(1), Value()}), Value(3)}));
  ASSERT_EQ(lists.size(), 2);
  EXPECT_NE(lists[0], nullptr);
  EXPECT_EQ(lists[0], lists[1]);  // the same one, not a copy
}

// --- CKPT-14 to 19 ---

TEST(PipeCheckpoint, StatisticsCountOnceWhateverTheMode) {
  PipeWorld world;
  std::vector<NamedTensors> states;
  for (CheckpointMode mode : kModes) {
    const PipelineSpec spec = Pipe({Built("linear", {{"in", int64_t{2}}, {"out", int64_t{2}}}, "first"),
                                    Built("batch_norm", {{"features", int64_t{2}}}, "norm")},
                                   {1, 1}, 2, mode);
    auto pipeline = world.Make(spec);
    ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {}).ok());
    states.push_back(pipeline->ExportState(false).value());
    PlainReference plain = PlainOf(spec);
    plain.TrainStep({Value(Range({4, 2}))}, at::ones({4, 2}), 2);
    EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode);
  }
  EXPECT_TRUE(SameTensors(states[0], states[2]));
  bool counted = false;
  for (const NamedTensor& tensor : states[0]) {
    if (tensor.name != "norm.num_batches_tracked") continue;
    EXPECT_EQ(tensor.tensor.item().toLong(), 2);  // one per micro-batch
    counted = true;
  }
  EXPECT_TRUE(counted);
}

TEST(PipeCheckpoint, InEveryModeStatisticsAreThoseOfTheMiniBatch) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    for (int chunks : {1, 2}) {
      PipelineSpec spec =
          Pipe({Function(PassOn), Built("batch_norm", {{"features", int64_t{3}}}, "norm")}, {1, 1}, chunks, mode);
      spec.model.deferred_batch_norm = true;
      auto pipeline = world.Make(spec);
      PlainReference plain = PlainOf(spec);
      const at::Tensor x = Range({4, 3, 10, 10}).mul(7).sub(1);
      const at::Tensor target = at::ones({4, 3, 10, 10});
      auto outcome = pipeline->TrainStep(Contribution(x, target), {});
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      plain.TrainStep({Value(x)}, target, chunks);
      EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode);
      // And those of a batch norm over all rows at once: momentum 0.1, the unbiased variance.
      for (const NamedTensor& tensor : NamedTensors(pipeline->ExportState(false).value())) {
        const at::Tensor columns = x.transpose(0, 1).flatten(1);
        if (tensor.name == "norm.running_mean") {
          EXPECT_TRUE(at::allclose(tensor.tensor, columns.mean(1).mul(0.1), 0, 1e-4));
        } else if (tensor.name == "norm.running_var") {
          EXPECT_TRUE(at::allclose(tensor.tensor, columns.var(1).mul(0.1).add(0.9), 0, 1e-4));
        } else if (tensor.name == "norm.num_batches_tracked") {
          EXPECT_EQ(tensor.tensor.item().toLong(), 1);
        }
      }
    }
  }
}

TEST(PipeCheckpoint, DropoutMasksRepeat) {
  // 100 dropouts on each of two stages that run at once; an element is zero in y exactly where its gradient is.
  for (const DevicePool::Mode mode : {DevicePool::Mode::kSerial, DevicePool::Mode::kThreads}) {
    PipeWorld world(mode);
    std::vector<LayerSpec> layers(200, Dropout(0.001));
    layers.insert(layers.begin(), Function(PassOn));
    auto pipeline = world.Make(Pipe(layers, {101, 100}, 10, CheckpointMode::kAlways));
    const Gradients gradients = ForwardAndBackward(*pipeline, Input(at::ones({10, 10})));
    const at::Tensor& y = gradients.outputs.at(0).tensor;
    const at::Tensor& gradient = *gradients.inputs.at(0).value.tensor();
    EXPECT_TRUE(at::equal(y.eq(0), gradient.eq(0)));
    EXPECT_GT(y.eq(0).sum().item().toLong(), 0);
    EXPECT_LT(y.eq(0).sum().item().toLong(), 100);
  }
  PipeWorld world;
  auto pipeline = world.Make(Pipe({Function(PassOn), Dropout(0.5)}, {2}, 1, CheckpointMode::kAlways));
  const Gradients gradients = ForwardAndBackward(*pipeline, Input(at::ones({3, 3})));
  EXPECT_TRUE(at::equal(gradients.outputs.at(0).tensor, *gradients.inputs.at(0).value.tensor()));  // 0 or 2
}

// --- The ancestors' bugs ---

// A custom node that gives on what it takes.
struct IdentityNode : public torch::autograd::Function<IdentityNode> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) { return input; }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*, std::vector<at::Tensor> gradients) {
    return gradients;
  }
};

TEST(PipeCheckpoint, AFunctionMayReturnItsInput) {
  PipeWorld world;
  const auto identity = [](const Batch& in, const LayerContext&, const Tensors&) {
    return Batch(IdentityNode::apply(in.TensorAt(0)));
  };
  for (CheckpointMode mode : kModes) {
    const PipelineSpec spec =
        Pipe({Function(PassOn), Function(identity), Linear(2, 2), Function(identity)}, {2, 2}, 2, mode);
    auto pipeline = world.Make(spec);
    PlainReference plain = PlainOf(spec);
    auto outcome = pipeline->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    plain.TrainStep({Value(Range({4, 2}))}, at::ones({4, 2}), 2);
    EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode);
  }
}

TEST(PipeCheckpoint, SharedWeightsUnderCheckpointingLearnAsOne) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    for (const std::vector<int>& balance : {std::vector<int>{3}, std::vector<int>{2, 1}, std::vector<int>{1, 1, 1}}) {
      PipelineSpec spec = Pipe({Built("linear", {{"in", int64_t{2}}, {"out", int64_t{2}}}, "a"), Linear(2, 2),
                                Built("linear", {{"in", int64_t{2}}, {"out", int64_t{2}}}, "c")},
                               balance, 2, mode);
      spec.model.ties = {{{"a.weight", "c.weight"}}};
      auto pipeline = world.Make(spec);
      PlainReference plain = PlainOf(spec);
      for (int step = 0; step < 2; ++step) {
        auto outcome = pipeline->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {});
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        EXPECT_EQ(*outcome->gradient_norm, plain.TrainStep({Value(Range({4, 2}))}, at::ones({4, 2}), 2).gradient_norm);
      }
      EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode);
    }
  }
}

TEST(PipeCheckpoint, EqualsThePlainModelInEveryMode) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    for (int chunks : {1, 4}) {
      const PipelineSpec spec =
          Pipe({Linear(4, 8), Built("relu"), Linear(8, 4), Built("relu"), Linear(4, 2)}, {2, 3}, chunks, mode);
      auto pipeline = world.Make(spec);
      PlainReference plain = PlainOf(spec);
      const at::Tensor x = Range({8, 4});
      ASSERT_TRUE(pipeline->TrainStep(Contribution(x, at::ones({8, 2})), {}).ok());
      plain.TrainStep({Value(x)}, at::ones({8, 2}), chunks);
      EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode) << " " << chunks;
      auto answer = world.Infer(*pipeline, Input(x));
      EXPECT_TRUE(at::equal(*answer->outputs[0].value.tensor(), plain.Infer({Value(x)}, chunks)[0]));
    }
  }
}

// --- In place ---

TEST(PipeInPlace, ChangesInPlaceOfAStagesInputAreRefused) {
  PipeWorld world;
  struct Case {
    const char* name;
    bool input_gradients;
    LayerFunction first;
  };
  const auto add = [](const Batch& in, const LayerContext&, const Tensors&) { return Batch(in.TensorAt(0).add_(1)); };
  // The ancestors' gradient of a*a + (b := a) += ... is silently another's.
  const auto double_in_place = [](const Batch& in, const LayerContext&, const Tensors&) {
    at::Tensor x = in.TensorAt(0);
    const at::Tensor square = x.mul(x);
    x.mul_(2);
    return Batch(square.add(x));
  };
  const Case cases[] = {{"on_requires_grad", true, add},
                        {"not_requires_grad", false, add},
                        {"incorrect_grad", false, double_in_place},
                        {"incorrect_grad", true, double_in_place}};
  for (const Case& one : cases) {
    for (CheckpointMode mode : kModes) {
      SCOPED_TRACE(absl::StrCat(one.name, " ", ModeName(mode)));
      auto pipeline =
          world.Make(Pipe({Function({.forward = one.first, .name = "spoiler"}), Weighted()}, {1, 1}, 2, mode));
      const at::Tensor x = Range({4, 2});
      auto forward = pipeline->Forward(Ask(Input(x), one.input_gradients));
      ASSERT_FALSE(forward.ok());
      const std::string text(forward.status().message());
      EXPECT_EQ(forward.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(ReasonOf(forward.status()), "WRONG_TYPE");
      EXPECT_THAT(text, HasSubstr("layer spoiler has changed an input of its stage in place"));
      // LibTorch sees it by itself where the input asks for a gradient and is not checkpointed: mode never, first.
      if (one.input_gradients && mode == CheckpointMode::kNever) {
        EXPECT_THAT(text, HasSubstr("a leaf Variable that requires grad is being used in an in-place operation"));
      }
      EXPECT_EQ(ValuesOf(forward.status())["field"], "spoiler");
      EXPECT_EQ(ValuesOf(forward.status())["stage"], "0");
    }
  }
  // In the middle of a stage a layer may do so, and the result is right.
  for (CheckpointMode mode : kModes) {
    const PipelineSpec spec = Pipe({Weighted(), Function(add), Weighted()}, {2, 1}, 2, mode);
    auto pipeline = world.Make(spec);
    PlainReference plain = PlainOf(spec);
    auto outcome = pipeline->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    plain.TrainStep({Value(Range({4, 2}))}, at::ones({4, 2}), 2);
    EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode);
  }
}

TEST(PipeInPlace, ATensorInsideOfAValueIsAnInputOfTheStageToo) {
  PipeWorld world;
  const auto spoil = [](const Batch& in, const LayerContext&, const Tensors&) {
    in[1].dict()->at(0).second.list()->at(0).tensor()->add_(1);
    return Batch(in[0]);
  };
  const LayerSpec spoiler = Function({.forward = spoil, .name = "spoiler"});
  struct Case {
    std::vector<LayerSpec> layers;
    std::string stage;
  };
  for (const Case& one : {Case{{spoiler, Weighted()}, "0"}, Case{{Function(PassOn), spoiler}, "1"}}) {
    for (const bool input_gradients : {false, true}) {
      for (CheckpointMode mode : kModes) {
        SCOPED_TRACE(absl::StrCat(one.stage, " ", input_gradients, " ", ModeName(mode)));
        auto pipeline = world.Make(Pipe(one.layers, {1, 1}, 2, mode));
        const Value inside = Value::Dict({{"state", Value::List({Value(Range({2}))})}});
        const absl::Status refused =
            pipeline->Forward(Ask(Inputs({Value(Range({4, 2})), inside}), input_gradients)).status();
        EXPECT_EQ(ReasonOf(refused), "WRONG_TYPE") << refused;
        EXPECT_THAT(std::string(refused.message()),
                    HasSubstr("layer spoiler has changed an input of its stage in place"));
        EXPECT_EQ(ValuesOf(refused)["field"], "spoiler");
        EXPECT_EQ(ValuesOf(refused)["stage"], one.stage);
      }
    }
  }
}

// Adds to its inputs in place, those inside of containers too.
class Spoiler : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    for (const at::Tensor& tensor : inputs.AllTensors()) tensor.add_(1);
    return inputs;
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
};

LayerSpec SpoilerOfALibrary() {
  static const bool registered =
      RegisterLayerKind(
          "test_spoiler",
          [](const LayerRequest&) -> absl::StatusOr<std::unique_ptr<Layer>> { return std::make_unique<Spoiler>(); },
          "libspoiler.so")
          .ok();
  EXPECT_TRUE(registered);
  return Built("test_spoiler", {}, "spoiler");
}

// They may be the content of a handle, which others read.
TEST(PipeInPlace, ALayerOfALibraryDoesNotChangeTheCallersTensors) {
  PipeWorld world;
  LayerSpec inner = SpoilerOfALibrary();
  LayerSpec sequence = Built("sequential", {}, "all");
  sequence.layers = {inner};
  for (const std::vector<LayerSpec>& layers :
       {std::vector<LayerSpec>{inner, Function(PassOn)}, std::vector<LayerSpec>{Function(PassOn), inner},
        std::vector<LayerSpec>{sequence, Function(PassOn)}}) {
    for (CheckpointMode mode : kModes) {
      SCOPED_TRACE(absl::StrCat(layers[0].kind, " ", ModeName(mode)));
      auto pipeline = world.Make(Pipe(layers, {1, 1}, 2, mode));
      const at::Tensor rows = Range({4, 2});
      const at::Tensor whole = Range({3});
      const at::Tensor inside = Range({5});
      const NamedValues inputs = Inputs({Value(rows), Value(WholeTensor{whole}), Value::List({Value(inside)})});
      EXPECT_EQ(ReasonOf(pipeline->Forward(Ask(inputs)).status()), "WRONG_TYPE");
      EXPECT_EQ(ReasonOf(world.Infer(*pipeline, inputs).status()), "WRONG_TYPE");
      EXPECT_TRUE(at::equal(rows, Range({4, 2})));
      EXPECT_TRUE(at::equal(whole, Range({3})));
      EXPECT_TRUE(at::equal(inside, Range({5})));
    }
  }
}

// --- Accumulation, memory ---

TEST(PipeGradients, SeveralForwardBackwardAddUpInEveryMode) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    const PipelineSpec spec = Pipe({Linear(2, 4), Dropout(0.5), Linear(4, 2)}, {2, 1}, 2, mode);
    auto pipeline = world.Make(spec);
    PlainReference plain = PlainOf(spec);
    for (int call = 0; call < 3; ++call) {
      ContributionRequest request = Contribution(Range({4, 2}).add(call), at::ones({4, 2}));
      request.total_rows = 12;
      auto outcome = pipeline->ForwardBackward(request);
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      plain.Contribute({Value(Range({4, 2}).add(call))}, at::ones({4, 2}), 2, 24);
    }
    auto outcome = pipeline->OptimizerStep({});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(*outcome->gradient_norm, plain.Step().gradient_norm) << ModeName(mode);
    EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode);
  }
}

TEST(PipeGradients, AnUnusedParameterGetsNoGradientAndNoError) {
  PipeWorld world;
  const auto half = [](const Batch& in, const LayerContext&, const Tensors& weights) {
    return Batch(in.TensorAt(0).mul(weights[1]));
  };
  for (CheckpointMode mode : kModes) {
    const LayerSpec layer = Function({.forward = half, .parameters = {{2}, {2}}});
    const PipelineSpec spec = Pipe({layer, Weighted()}, {1, 1}, 2, mode);
    auto pipeline = world.Make(spec);
    ASSERT_TRUE(pipeline->ForwardBackward(Contribution(Range({4, 2}), at::ones({4, 2}))).ok());
    EXPECT_FALSE(ParametersOf(layer)[0].grad().defined());
    EXPECT_TRUE(ParametersOf(layer)[1].grad().defined());
    auto outcome = pipeline->OptimizerStep({});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(at::equal(ParametersOf(layer)[0], Range({2})));
    EXPECT_FALSE(at::equal(ParametersOf(layer)[1], Range({2})));
  }
}

TEST(PipeGradients, NothingOfAStepOutlivesIt) {
  for (const DevicePool::Mode pool : {DevicePool::Mode::kSerial, DevicePool::Mode::kThreads}) {
    PipeWorld world(pool);
    for (CheckpointMode mode : kModes) {
      absl::Mutex mu;
      std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> live;
      const auto note = [&](const Batch& in, const LayerContext&, const Tensors& weights) {
        const at::Tensor y = in.TensorAt(0).mul(weights[0]);
        absl::MutexLock lock(&mu);
        live.emplace_back(in.TensorAt(0).getIntrusivePtr());
        live.emplace_back(y.getIntrusivePtr());
        return Batch(y);
      };
      const auto stash = [&](const Batch& in, const LayerContext& context, const Tensors& weights) {
        const Batch y = note(in, context, weights);
        context.skips->Stash("s", y[0]);
        return y;
      };
      const auto pop = [&](const Batch& in, const LayerContext& context, const Tensors&) {
        return Batch(in.TensorAt(0).add(*context.skips->Pop("s").tensor()));
      };
      auto pipeline =
          world.Make(Pipe({Function({.forward = stash, .parameters = {{2}}, .stashes = {"s"}}),
                           Function({.forward = note, .parameters = {{2}}}), Function({.forward = pop, .pops = {"s"}})},
                          {1, 1, 1}, 2, mode));
      const auto alive = [&] {
        size_t count = 0;
        absl::MutexLock lock(&mu);
        for (const auto& tensor : live) count += tensor.expired() ? 0 : 1;
        return count;
      };
      ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {}).ok());
      EXPECT_GE(live.size(), 8);
      EXPECT_EQ(alive(), 0) << ModeName(mode);
      auto forward = pipeline->Forward(Ask(Input(Range({4, 2}))));
      ASSERT_TRUE(forward.ok()) << forward.status();
      EXPECT_GT(alive(), 0);  // the graph holds what it needs
      ASSERT_TRUE(pipeline->Backward(forward->graph, {{"output", at::ones({4, 2})}}, false).ok());
      EXPECT_EQ(alive(), 0) << ModeName(mode);
      pipeline->DiscardGradients();
      forward = pipeline->Forward(Ask(Input(Range({4, 2}))));
      forward->graph.reset();  // never run backward
      EXPECT_EQ(alive(), 0) << ModeName(mode);
    }
  }
}

}  // namespace
}  // namespace penstock::testing
