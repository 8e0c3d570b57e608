// Skip connections through a whole pipe: every cut, mode and schedule gives what the plain model gives.

#include <ATen/ops/allclose.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::vector<int>> kCutsOfThree = {{3}, {1, 2}, {2, 1}, {1, 1, 1}};

// Gives on its input, weighted, and stashes it under every name, weighted in another way each time.
LayerSpec Stash(std::vector<std::string> names, const std::string& name = "") {
  const auto forward = [names](const Batch& in, const LayerContext& context, const Tensors& weights) {
    for (size_t i = 0; i < names.size(); ++i) {
      context.skips->Stash(names[i], in.TensorAt(0).mul(weights[0]).mul(static_cast<double>(i + 2)));
    }
    return Batch(in.TensorAt(0).mul(weights[0]));
  };
  return Function({.forward = forward, .parameters = {{2}}, .stashes = names, .name = name});
}

// Adds to its input, weighted, everything that it pops; the order of the names does matter.
LayerSpec Pop(std::vector<std::string> names, const std::string& name = "") {
  const auto forward = [names](const Batch& in, const LayerContext& context, const Tensors& weights) {
    at::Tensor sum = in.TensorAt(0).mul(weights[0]);
    for (const std::string& one : names) sum = sum.mul(2).add(*context.skips->Pop(one).tensor());
    return Batch(sum);
  };
  return Function({.forward = forward, .parameters = {{2}}, .pops = names, .name = name});
}

LayerSpec Isolated(LayerSpec layer, const std::string& skip_namespace) {
  layer.isolate = {{.skip_namespace = skip_namespace}};
  return layer;
}

// Trains a step and infers; all of it must equal the plain model's.
void ExpectPlain(PipeWorld& world, const PipelineSpec& spec, const at::Tensor& x) {
  SCOPED_TRACE(absl::StrCat(absl::StrJoin(spec.cut.balance, ","), " ", ModeName(spec.schedule.checkpoint), " ",
                            spec.schedule.kind));
  auto pipeline = world.Make(spec);
  PlainReference plain = PlainOf(spec);
  const int chunks = spec.schedule.micro_batches;
  auto answer = world.Infer(*pipeline, Input(x));
  ASSERT_TRUE(answer.ok()) << answer.status();
  const at::Tensor expected = plain.Infer({Value(x)}, chunks)[0];
  EXPECT_TRUE(at::equal(*answer->outputs.at(0).value.tensor(), expected));
  const at::Tensor target = at::ones(expected.sizes());
  auto outcome = pipeline->TrainStep(Contribution(x, target), {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto plain_outcome = plain.TrainStep({Value(x)}, target, chunks);
  EXPECT_EQ(*outcome->loss, plain_outcome.loss);
  EXPECT_EQ(*outcome->gradient_norm, plain_outcome.gradient_norm);
  EXPECT_TRUE(SameState(*pipeline, plain));
}

// --- Declarations ---

TEST(PipeSkip, ALayerMustDoWhatItDeclared) {
  PipeWorld world;
  struct Case {
    const char* name;
    LayerFunction stasher, popper;
    std::string sentence;
  };
  const auto stash = [](const Batch& in, const LayerContext& context, const Tensors&) {
    for (const char* name : {"a", "b"}) context.skips->Stash(name, in[0]);
    return in;
  };
  const auto pop = [](const Batch& in, const LayerContext& context, const Tensors&) {
    for (const char* name : {"a", "b"}) (void)context.skips->Pop(name);
    return in;
  };
  const Case cases[] = {
      {"stash nothing", PassOn, pop, "'a', 'b' must be stashed but have not"},
      {"pop one", stash,
       [](const Batch& in, const LayerContext& context, const Tensors&) {
         (void)context.skips->Pop("b");
         return in;
       },
       "'a' must be popped but have not"},
      {"stash another",
       [](const Batch& in, const LayerContext& context, const Tensors&) {
         context.skips->Stash("c", in[0]);
         return in;
       },
       pop, "'c' has not been declared as stashable"},
      {"pop another", stash,
       [](const Batch& in, const LayerContext& context, const Tensors&) {
         (void)context.skips->Pop("c");
         return in;
       },
       "'c' has not been declared as poppable"},
      {"pop twice", stash,
       [](const Batch& in, const LayerContext& context, const Tensors&) {
         (void)context.skips->Pop("a");
         (void)context.skips->Pop("a");
         return in;
       },
       "'a' has not been stashed"},
  };
  for (const Case& one : cases) {
    for (const std::vector<int>& balance : {std::vector<int>{2}, std::vector<int>{1, 1}}) {
      auto pipeline = world.Make(Pipe({Function({.forward = one.stasher, .stashes = {"a", "b"}}),
                                       Function({.forward = one.popper, .pops = {"a", "b"}})},
                                      balance, 2));
      const absl::Status status = world.Infer(*pipeline, Input(Range({2, 2}))).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << one.name << " " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(one.sentence));
    }
  }
}

TEST(PipeSkip, TheLastStashedValueWins) {
  PipeWorld world;
  const auto twice = [](const Batch& in, const LayerContext& context, const Tensors&) {
    context.skips->Stash("a", in.TensorAt(0));
    context.skips->Stash("a", in.TensorAt(0).mul(10));
    return in;
  };
  for (const std::vector<int>& balance : {std::vector<int>{2}, std::vector<int>{1, 1}}) {
    auto pipeline = world.Make(Pipe({Function({.forward = twice, .stashes = {"a"}}), Pop({"a"})}, balance));
    auto answer = world.Infer(*pipeline, Input(Range({2, 2})));
    ASSERT_TRUE(answer.ok());
    EXPECT_TRUE(
        at::equal(*answer->outputs[0].value.tensor(), Range({2, 2}).mul(Range({2})).mul(2).add(Range({2, 2}).mul(10))));
  }
}

TEST(PipeSkip, NoneMayBeStashedInEveryMode) {
  PipeWorld world;
  const auto stash = [](const Batch& in, const LayerContext& context, const Tensors&) {
    context.skips->Stash("none", Value());
    return in;
  };
  int popped = 0;
  const auto pop = [&](const Batch& in, const LayerContext& context, const Tensors&) {
    EXPECT_TRUE(context.skips->Pop("none").is_none());
    ++popped;
    return in;
  };
  for (const std::vector<int>& balance : kCutsOfThree) {
    for (CheckpointMode mode : kModes) {
      auto pipeline = world.Make(Pipe({Function({.forward = stash, .stashes = {"none"}}), Function(PassOn),
                                       Function({.forward = pop, .pops = {"none"}})},
                                      balance, 5, mode));
      const at::Tensor x = Range({10, 1});
      auto forward = pipeline->Forward(Ask(Input(x), true));
      ASSERT_TRUE(forward.ok()) << forward.status();
      EXPECT_TRUE(at::equal(*forward->outputs[0].value.tensor(), x));
      auto backward = pipeline->Backward(forward->graph, {{"output", at::ones({10, 1})}}, false);
      ASSERT_TRUE(backward.ok()) << backward.status();
      EXPECT_EQ(backward->input_gradients.at(0).value.tensor()->mean().item().toDouble(), 1);
    }
  }
  EXPECT_GE(popped, 4 * 3 * 5);
}

TEST(PipeSkip, TheSameLayersWorkWithoutAPipe) {
  const PipelineSpec spec = Pipe({Stash({"s"}), Pop({"s"})}, {1, 1});
  PlainReference plain = PlainOf(spec);
  const at::Tensor x = Range({2, 2});
  const at::Tensor y = x.mul(Range({2}));
  EXPECT_TRUE(at::equal(plain.Infer({Value(x)}, 1)[0], y.mul(Range({2})).mul(2).add(y.mul(2.0))));
}

// --- Ways ---

TEST(PipeSkip, SkipsPassInEveryCutModeAndSchedule) {
  // x -> conv, stashed -> conv -> conv of both
  const auto conv = [](const at::Tensor& x, const at::Tensor& weight) { return at::relu(at::conv2d(x, weight)); };
  const auto one = [=](const Batch& in, const LayerContext& context, const Tensors& weights) {
    context.skips->Stash("1to3", in[0]);
    return Batch(conv(in.TensorAt(0), weights[0]));
  };
  const auto two = [=](const Batch& in, const LayerContext&, const Tensors& weights) {
    return Batch(conv(in.TensorAt(0), weights[0]));
  };
  const auto three = [=](const Batch& in, const LayerContext& context, const Tensors& weights) {
    return Batch(conv(in.TensorAt(0), weights[0]).add(*context.skips->Pop("1to3").tensor()));
  };
  const std::vector<int64_t> shape = {3, 3, 1, 1};
  const std::vector<LayerSpec> layers = {Function({.forward = one, .parameters = {shape}, .stashes = {"1to3"}}),
                                         Function({.forward = two, .parameters = {shape}}),
                                         Function({.forward = three, .parameters = {shape}, .pops = {"1to3"}})};
  PipeWorld serial;
  PipeWorld threads(DevicePool::Mode::kThreads);
  for (PipeWorld* world : {&serial, &threads}) {
    for (const std::vector<int>& balance : kCutsOfThree) {
      for (CheckpointMode mode : kModes) {
        for (const char* kind : {"gpipe", "1f1b"}) {
          PipelineSpec spec = Pipe(layers, balance, 3, mode);
          spec.schedule.kind = kind;
          ExpectPlain(*world, spec, Range({30, 3, 4, 4}));
        }
        // The gradient of the input reaches it on both ways.
        const PipelineSpec spec = Pipe(layers, balance, 3, mode);
        auto pipeline = world->Make(spec);
        const at::Tensor x = Range({30, 3, 4, 4});
        auto forward = pipeline->Forward(Ask(Input(x), true));
        ASSERT_TRUE(forward.ok()) << forward.status();
        const at::Tensor gradient = at::ones({30, 3, 4, 4});
        auto backward = pipeline->Backward(forward->graph, {{"output", gradient}}, false);
        ASSERT_TRUE(backward.ok()) << backward.status();
        PlainReference plain = PlainOf(spec);
        const at::Tensor leaf = x.clone().requires_grad_(true);
        for (const Batch& output : plain.Forward({Value(leaf)}, 3))
          output.TensorAt(0).backward(gradient.narrow(0, 0, 10));
        EXPECT_TRUE(at::allclose(*backward->input_gradients[0].value.tensor(), leaf.grad(), 1e-6));
        EXPECT_GT(backward->input_gradients[0].value.tensor()->min().item().toDouble(), 1);
      }
    }
  }
}

TEST(PipeSkip, LayoutsOfTheAncestors) {
  struct Case {
    const char* name;
    std::vector<LayerSpec> layers;
    std::vector<int> balance;
    std::vector<std::string> routes;  // "from>to names"
  };
  const Case cases[] = {
      {"none", {Weighted(), Weighted()}, {1, 1}, {}},
      {"inner", {Weighted(), Stash({"foo"}), Pop({"foo"})}, {1, 2}, {}},
      {"adjoining", {Stash({"foo"}), Pop({"foo"})}, {1, 1}, {"0>1 foo"}},
      {"far", {Stash({"foo"}), Weighted(), Pop({"foo"})}, {1, 1, 1}, {"0>2 foo"}},
      {"two sources", {Stash({"foo"}), Stash({"bar"}), Pop({"foo", "bar"})}, {1, 1, 1}, {"0>2 foo", "1>2 bar"}},
      {"namespaces",
       {Isolated(Stash({"foo"}), "ns1"), Isolated(Stash({"foo"}), "ns2"), Isolated(Pop({"foo"}), "ns1"),
        Isolated(Pop({"foo"}), "ns2")},
       {1, 1, 2},
       {"0>2 ns1/foo", "1>2 ns2/foo"}},
  };
  PipeWorld world;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    std::vector<std::string> routes;
    auto pipeline = world.Make(Pipe(one.layers, one.balance));
    for (const SkipRoute& route : pipeline->plan().skips) {
      std::vector<std::string> names;
      for (const SkipName& name : route.names) {
        names.push_back(name.skip_namespace.empty() ? name.name : name.skip_namespace + "/" + name.name);
      }
      routes.push_back(absl::StrCat(route.edge.from, ">", route.edge.to, " ", absl::StrJoin(names, ",")));
    }
    EXPECT_EQ(routes, one.routes);
    for (CheckpointMode mode : kModes) ExpectPlain(world, Pipe(one.layers, one.balance, 2, mode), Range({4, 2}));
  }
}

TEST(PipeSkip, LongNestedAndCrossingSkipsInTrainingAndInference) {
  const std::vector<LayerSpec> layers = {Stash({"a"}), Stash({"b", "c"}), Weighted(), Pop({"b"}),
                                         Stash({"d"}), Pop({"c", "a"}),   Pop({"d"})};
  PipeWorld serial;
  PipeWorld threads(DevicePool::Mode::kThreads);
  for (PipeWorld* world : {&serial, &threads}) {
    for (const std::vector<int>& balance : {std::vector<int>{7}, {3, 4}, {1, 1, 1, 1, 1, 1, 1}, {2, 2, 3}, {1, 5, 1}}) {
      for (CheckpointMode mode : kModes) {
        for (const char* kind : {"gpipe", "1f1b"}) {
          PipelineSpec spec = Pipe(layers, balance, 3, mode);
          spec.schedule.kind = kind;
          ExpectPlain(*world, spec, Range({5, 2}));
        }
      }
    }
  }
}

TEST(PipeSkip, ARetainedGraphNeedsItsSkipsAgain) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    const LayerSpec first = Stash({"s"});
    auto pipeline = world.Make(Pipe({first, Weighted(), Pop({"s"})}, {1, 1, 1}, 2, mode));
    auto forward = pipeline->Forward(Ask(Input(Range({4, 2})), true));
    ASSERT_TRUE(forward.ok()) << forward.status();
    std::vector<at::Tensor> gradients;
    for (const bool retain : {true, true, false}) {
      auto backward = pipeline->Backward(forward->graph, {{"output", at::ones({4, 2})}}, retain);
      ASSERT_TRUE(backward.ok()) << ModeName(mode) << " " << backward.status();
      gradients.push_back(*backward->input_gradients[0].value.tensor());
    }
    EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
    EXPECT_TRUE(at::equal(gradients[0], gradients[2]));
  }
}

TEST(PipeSkip, ARecomputationThatFailsMayBeTriedAgain) {
  PipeWorld world;
  bool fails = true;
  const auto pop = [&fails](const Batch& in, const LayerContext& context, const Tensors& weights) {
    const at::Tensor skip = *context.skips->Pop("s").tensor();
    if (context.recomputing && fails) throw std::bad_alloc();
    return Batch(in.TensorAt(0).mul(weights[0]).add(skip));
  };
  const LayerSpec last = Function({.forward = pop, .parameters = {{2}}, .pops = {"s"}});
  auto pipeline = world.Make(Pipe({Stash({"s"}), Weighted(), last}, {1, 1, 1}, 2, CheckpointMode::kAlways));
  auto forward = pipeline->Forward(Ask(Input(Range({4, 2})), true));
  ASSERT_TRUE(forward.ok()) << forward.status();
  const NamedTensors gradients = {{"output", at::ones({4, 2})}};
  EXPECT_EQ(ReasonOf(pipeline->Backward(forward->graph, gradients, /*retain_graph=*/true).status()), "HOST_MEMORY");
  fails = false;
  const auto backward = pipeline->Backward(forward->graph, gradients, /*retain_graph=*/false);
  EXPECT_TRUE(backward.ok()) << backward.status();
}

TEST(PipeSkip, APoppedValueThatNobodyUsesHasNoGradientAndNoError) {
  PipeWorld world;
  const auto ignore = [](const Batch& in, const LayerContext& context, const Tensors& weights) {
    (void)context.skips->Pop("s");
    return Batch(in.TensorAt(0).mul(weights[0]));
  };
  for (const std::vector<int>& balance : kCutsOfThree) {
    for (CheckpointMode mode : kModes) {
      ExpectPlain(world,
                  Pipe({Stash({"s"}), Weighted(), Function({.forward = ignore, .parameters = {{2}}, .pops = {"s"}})},
                       balance, 2, mode),
                  Range({4, 2}));
    }
  }
}

TEST(PipeSkip, GradientsGoBackToTheStashOnly) {
  PipeWorld world;
  const auto stash = [](const Batch& in, const LayerContext& context, const Tensors&) {
    context.skips->Stash("blue", in[0]);
    return Batch(in[1]);
  };
  for (const bool orange_learns : {true, false}) {  // gradients 2 and 1, or 2 and none
    const auto pop = [=](const Batch& in, const LayerContext& context, const Tensors&) {
      const at::Tensor& orange = in.TensorAt(0);
      return Batch(context.skips->Pop("blue").tensor()->mul(2).add(orange_learns ? orange : orange.detach()));
    };
    for (const std::vector<int>& balance : kCutsOfThree) {
      for (CheckpointMode mode : kModes) {
        auto pipeline = world.Make(Pipe({Function({.forward = stash, .stashes = {"blue"}}), Function(PassOn),
                                         Function({.forward = pop, .pops = {"blue"}})},
                                        balance, 2, mode));
        auto forward = pipeline->Forward(Ask(Inputs({Value(Range({4, 2})), Value(Range({4, 2}))}), true));
        ASSERT_TRUE(forward.ok()) << forward.status();
        auto backward = pipeline->Backward(forward->graph, {{"output", at::ones({4, 2})}}, false);
        ASSERT_TRUE(backward.ok()) << backward.status();
        EXPECT_TRUE(at::equal(*backward->input_gradients[0].value.tensor(), at::ones({4, 2}).mul(2)));
        ASSERT_EQ(backward->input_gradients[1].value.is_tensor(), orange_learns);
        if (orange_learns) {
          EXPECT_TRUE(at::equal(*backward->input_gradients[1].value.tensor(), at::ones({4, 2})));
        }
      }
    }
  }
}

TEST(PipeSkip, ALayerWithSkipsMayTakeSeveralInputs) {
  PipeWorld world;
  const auto split = [](const Batch& in, const LayerContext&, const Tensors& weights) {
    return Batch::Tuple({Value(in.TensorAt(0).mul(weights[0])), Value(in.TensorAt(0).add(weights[0])), Value(3)});
  };
  const auto stash = [](const Batch& in, const LayerContext& context, const Tensors& weights) {
    context.skips->Stash("pair", Value(in.TensorAt(0).mul(in.TensorAt(1))));
    return Batch::Tuple({Value(in.TensorAt(1).mul(weights[0])), in[0], in[2]});
  };
  const auto pop = [](const Batch& in, const LayerContext& context, const Tensors&) {
    return Batch(in.TensorAt(0).add(in.TensorAt(1).mul(*in[2].integer())).add(*context.skips->Pop("pair").tensor()));
  };
  for (const std::vector<int>& balance : kCutsOfThree) {
    for (CheckpointMode mode : kModes) {
      ExpectPlain(world,
                  Pipe({Function({.forward = split, .parameters = {{2}}}),
                        Function({.forward = stash, .parameters = {{2}}, .stashes = {"pair"}}),
                        Function({.forward = pop, .pops = {"pair"}})},
                       balance, 2, mode),
                  Range({4, 2}));
    }
  }
}

TEST(PipeSkip, ABadSkipInsideALayerIsFoundWhenThePipeIsMade) {
  PipeWorld world;
  LayerSpec outer = Built("sequential", {}, "outer");
  outer.layers = {Weighted(), Pop({"s"}, "inner")};
  const absl::Status status = world.TryMake(Pipe({Weighted(), outer}, {1, 1})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("declared 's' as poppable but it was not stashed"));
  outer.layers = {Stash({"s"}), Pop({"s"})};
  ExpectPlain(world, Pipe({Weighted(), outer}, {1, 1}, 2), Range({4, 2}));
  // One end inside, one outside.
  outer.layers = {Weighted(), Pop({"s"})};
  ExpectPlain(world, Pipe({Stash({"s"}), Weighted(), outer}, {1, 1, 1}, 2), Range({4, 2}));
}

TEST(PipeSkip, SeveralNamesTravelInTheOrderOfTheirDeclaration) {
  PipeWorld world;
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"z", "a", "m"}, std::vector<std::string>{"a", "m", "z"}}) {
    const PipelineSpec spec = Pipe({Stash(names), Weighted(), Pop({"m", "z", "a"})}, {1, 1, 1}, 2);
    auto pipeline = world.Make(spec);
    ASSERT_EQ(pipeline->plan().skips.size(), 1);
    std::vector<std::string> order;
    for (const SkipName& name : pipeline->plan().skips[0].names) order.push_back(name.name);
    EXPECT_EQ(order, names);
    ExpectPlain(world, spec, Range({4, 2}));
  }
}

}  // namespace
}  // namespace penstock::testing
