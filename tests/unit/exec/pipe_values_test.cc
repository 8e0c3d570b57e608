// Values in, between and out of stages: what the ancestors' tests show of a whole pipe without failures.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

NamedValues InferAll(PipeWorld& world, const PipelineSpec& spec, const NamedValues& inputs, int chunks = 0) {
  auto answer = world.Infer(*world.Make(spec), inputs, chunks);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? answer->outputs : NamedValues();
}

absl::Status InferFails(PipeWorld& world, const PipelineSpec& spec, const NamedValues& inputs) {
  auto answer = world.Infer(*world.Make(spec), inputs);
  EXPECT_FALSE(answer.ok());
  return answer.status();
}

// --- Gradients ---

// A gradient that a parameter takes over may be a view of the elements of the input's.
TEST(PipeGradients, OfAParameterAndOfAnInputShareNoElements) {
  constexpr int64_t kWidth = 3;
  const at::Tensor input = Range({2, kWidth}) + 1;
  const at::Tensor target = at::zeros({2, kWidth});
  const auto add = [](const Batch& inputs, const LayerContext&, const Tensors& parameters) {
    return Batch(inputs.TensorAt(0).squeeze(0).add(parameters[0].view({kWidth})).unsqueeze(0));
  };
  for (const CheckpointMode mode : kModes) {
    PipeWorld world;
    const std::vector<LayerSpec> layers = {Function({.forward = Multiply, .parameters = {{kWidth}}}),
                                           Function({.forward = add, .parameters = {{1, kWidth}}})};
    const auto pipeline = world.Make(Pipe(layers, {1, 1}, 2, mode));
    const at::Tensor factor = ParametersOf(layers[0])[0].detach().clone().requires_grad_();
    const at::Tensor summand = ParametersOf(layers[1])[0].detach().clone().requires_grad_();
    // Micro-batches of one row, two contributions.
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(pipeline->ForwardBackward(Contribution(input, target)).ok());
    ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
    const at::Tensor loss = at::mse_loss(input.mul(factor).add(summand), target);
    const auto gradients = torch::autograd::grad({loss}, {factor, summand});
    EXPECT_TRUE(at::allclose(ParametersOf(layers[0])[0], factor - 2 * gradients[0])) << ModeName(mode);
    EXPECT_TRUE(at::allclose(ParametersOf(layers[1])[0], summand - 2 * gradients[1])) << ModeName(mode);
  }
}

TEST(PipeGradients, StayWhereALaterContributionDoesNotReachTheParameter) {
  const at::Tensor input = Range({4, 2}) + 1;
  const at::Tensor target = at::zeros({4, 2});
  for (const CheckpointMode mode : kModes) {
    bool reaches = true;
    const auto may_multiply = [&](const Batch& inputs, const LayerContext& context, const Tensors& parameters) {
      return reaches ? Multiply(inputs, context, parameters) : inputs;
    };
    PipeWorld world;
    const std::vector<LayerSpec> layers = {Function({.forward = may_multiply, .parameters = {{2}}}),
                                           Function({.forward = Multiply, .parameters = {{2}}})};
    const auto pipeline = world.Make(Pipe(layers, {1, 1}, 2, mode));
    const at::Tensor factor = ParametersOf(layers[0])[0].detach().clone().requires_grad_();
    const at::Tensor other = ParametersOf(layers[1])[0].detach().clone();
    ASSERT_TRUE(pipeline->ForwardBackward(Contribution(input, target)).ok());
    reaches = false;
    ASSERT_TRUE(pipeline->ForwardBackward(Contribution(input, target)).ok());
    ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
    const at::Tensor loss = at::mse_loss(input.mul(factor).mul(other), target);
    const auto gradients = torch::autograd::grad({loss}, {factor});
    EXPECT_TRUE(at::allclose(ParametersOf(layers[0])[0], factor - gradients[0])) << ModeName(mode);
  }
}

// Three layers: the first gives tensors inside of containers, to the next layer and as a skip; the last uses them.
std::vector<LayerSpec> LayersWithContainers() {
  const auto give = [](const Batch& in, const LayerContext& context, const Tensors& own) {
    const at::Tensor aux = in.TensorAt(0).mul(own.at(1));
    context.skips->Stash("aside", Value::List({Value(), Value::Dict({{"aux", Value(aux)}})}));
    return Batch::Tuple({Value(in.TensorAt(0).mul(own.at(0))),
                         Value::Dict({{"step", Value(3)}, {"aux", Value::Tuple({Value(aux), Value("text")})}})});
  };
  const auto between = [](const Batch& in, const LayerContext&, const Tensors& own) {
    return Batch::Tuple({Value(in.TensorAt(0).mul(own.at(0))), in[1]});
  };
  const auto take = [](const Batch& in, const LayerContext& context, const Tensors& own) {
    const at::Tensor aux = *in[1].dict()->at(1).second.tuple()->at(0).tensor();
    const Value aside = context.skips->Pop("aside");
    const at::Tensor held = *aside.list()->at(1).dict()->at(0).second.tensor();
    return Batch(in.TensorAt(0).add(aux.mul(own.at(0))).add(held.mul(held)));
  };
  return {Function({.forward = give, .parameters = {{2}, {2}}, .stashes = {"aside"}}),
          Function({.forward = between, .parameters = {{2}}}),
          Function({.forward = take, .parameters = {{2}}, .pops = {"aside"}})};
}

void ExpectStepsOfThePlainModel(PipeWorld& world, const PipelineSpec& spec) {
  auto pipeline = world.Make(spec);
  PlainReference plain = PlainOf(spec);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = Range({4, 2}) + step;
    auto outcome = pipeline->TrainStep(Contribution(x, at::ones({4, 2})), {});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    const auto want = plain.TrainStep({Value(x)}, at::ones({4, 2}), spec.schedule.micro_batches);
    EXPECT_EQ(*outcome->loss, want.loss);
    EXPECT_EQ(*outcome->gradient_norm, want.gradient_norm);
    EXPECT_TRUE(SameState(*pipeline, plain));
  }
}

TEST(PipeGradients, OfTensorsInsideOfContainersCrossEveryCut) {
  for (const std::vector<int>& balance :
       {std::vector<int>{3}, std::vector<int>{1, 2}, std::vector<int>{2, 1}, std::vector<int>{1, 1, 1}}) {
    for (const CheckpointMode mode : kModes) {
      SCOPED_TRACE(absl::StrCat(balance.size(), " stages, the first of ", balance[0], ", ", ModeName(mode)));
      PipeWorld world;
      ExpectStepsOfThePlainModel(world, Pipe(LayersWithContainers(), balance, 2, mode));
    }
    PipeWorld world;
    PipelineSpec halves = Pipe(LayersWithContainers(), balance, 2, CheckpointMode::kNever);
    halves.schedule.kind = "zb-h1";
    ExpectStepsOfThePlainModel(world, halves);
  }
}

// Measuring takes each layer by itself, several times: no layer's backward may go on into the one before.
TEST(PipeGradients, OfTensorsInsideOfContainersStayInTheLayerThatIsMeasured) {
  PipeWorld world;
  std::vector<LayerSpec> layers = LayersWithContainers();
  layers.insert(layers.begin(), Linear(2, 2));
  PipelineSpec spec = Pipe(layers, {}, 2);
  spec.cut = {};
  const auto pipeline = world.TryMake(spec);
  EXPECT_TRUE(pipeline.ok()) << pipeline.status();
}

// --- Gather ---

TEST(PipeGather, ConcatenatesTensorsAndListsTheRestInMicroBatchOrder) {
  PipeWorld world;
  const auto layer = [](const Batch& inputs, const LayerContext& context, const Tensors&) {
    return Batch::Tuple(
        {inputs[0], Value(context.micro_batch.value() * 10), Value("text"), Value(inputs.TensorAt(0).mul(2))});
  };
  const at::Tensor x = Range({5, 2});
  const NamedValues outputs = InferAll(world, Pipe({Function(layer)}, {1}, 3), Input(x));
  ASSERT_EQ(outputs.size(), 4);
  EXPECT_TRUE(outputs.tuple);
  EXPECT_TRUE(at::equal(*outputs[0].value.tensor(), x));
  ASSERT_EQ(outputs[1].value.list()->size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(*outputs[1].value.list()->at(i).integer(), i * 10);
    EXPECT_EQ(*outputs[2].value.list()->at(i).text(), "text");
  }
  EXPECT_TRUE(at::equal(*outputs[3].value.tensor(), x.mul(2)));
}

TEST(PipeGather, OutputsComeInTheOrderInWhichTheyAreWanted) {
  PipeWorld world;
  const auto pair = [](const Batch& inputs, const LayerContext&, const Tensors&) {
    return Batch::Tuple({inputs[0], Value(inputs.TensorAt(0).mul(2))});
  };
  const auto pipeline = world.Make(Pipe({Function({.forward = pair, .outputs = {"once", "twice"}})}, {1}, 2));
  const at::Tensor x = Range({4, 2});
  ForwardRequest request = Ask(Input(x));
  request.outputs = {"twice", "once"};
  const auto forward = pipeline->Forward(std::move(request));
  ASSERT_TRUE(forward.ok()) << forward.status();
  ASSERT_EQ(forward->outputs.size(), 2);
  EXPECT_EQ(forward->outputs[0].name, "twice");
  EXPECT_TRUE(at::equal(*forward->outputs[0].value.tensor(), x.mul(2)));
  EXPECT_EQ(forward->outputs[1].name, "once");
  EXPECT_TRUE(at::equal(*forward->outputs[1].value.tensor(), x));
}

TEST(PipeGather, OutputsThatOnlyARunTellsAreNotChosenByName) {
  PipeWorld world;
  const auto pipeline = world.Make(Pipe({Function(PassOn)}, {1}));
  ForwardRequest request = Ask(Input(Range({4, 2})));
  request.outputs = {"output"};
  const absl::Status refused = pipeline->Forward(std::move(request)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(refused), "TENSOR_SIGNATURE");
  EXPECT_EQ(ValuesOf(refused)["field"], "outputs[0]");
  EXPECT_EQ(ValuesOf(refused)["value"], "output");
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("can't be chosen by name, for this model tells what it returns only when it runs"));
}

TEST(PipeGather, RefusesWhatDoesNotJoinWithTheAncestorsSentences) {
  struct Case {
    LayerFunction last;
    int chunks;
    std::string sentence;
  };
  const Case cases[] = {
      {[](const Batch& in, const LayerContext& context, const Tensors&) {
         return Batch::Tuple({in[0], context.micro_batch.value() == 0 ? in[0] : Value(1)});
       },
       2, "Types for microbatch outputs do not match, found: "},
      {[](const Batch& in, const LayerContext& context, const Tensors&) {
         return Batch(in.TensorAt(0).narrow(1, 0, 3 + context.micro_batch.value()));
       },
       2,
       "Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4 for tensor number 1 in the "
       "list"},
  };
  PipeWorld world;
  for (const Case& one : cases) {
    const absl::Status status = InferFails(world, Pipe({Function(one.last)}, {1}, one.chunks), Input(Range({2, 4})));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.sentence));
  }
}

// Of training calls, which name their outputs: tests/integration/test_models.py.
TEST(PipeGather, ZeroDimensionalOutputsComeAsAListByMicroBatch) {
  const auto sums = [](const Batch& in, const LayerContext&, const Tensors& own) {
    const at::Tensor y = in.TensorAt(0).mul(own.at(0));
    return Batch::Tuple({y, y.sum()});
  };
  PipeWorld world;
  for (const int m : {1, 3}) {
    auto pipeline = world.Make(Pipe({Function({.forward = sums, .parameters = {{2}}})}, {1}, m));
    const at::Tensor x = Range({6, 2});
    const at::Tensor want = x.mul(Range({2})).reshape({m, 6 / m * 2}).sum(1);
    const auto inferred = world.Infer(*pipeline, Input(x));
    const auto forward = pipeline->Forward(Ask(Input(x)));
    ASSERT_TRUE(inferred.ok() && forward.ok()) << inferred.status() << forward.status();
    // The gradient of such an output has the same form; of y alone, only y's is given.
    const auto backward = pipeline->Backward(
        forward->graph, {{"output0", at::zeros({6, 2})}, {"output1", at::ones({m})}}, /*retain_graph=*/true);
    ASSERT_TRUE(backward.ok()) << backward.status();
    EXPECT_TRUE(pipeline->Backward(forward->graph, {{"output0", at::zeros({6, 2})}}, /*retain_graph=*/false).ok());
    const double norm = *pipeline->OptimizerStep({.learning_rate = 0, .clip_norm = {}})->gradient_norm;
    EXPECT_FLOAT_EQ(static_cast<float>(norm), x.sum(0).norm().item<float>());
    for (const NamedValues* outputs : {&inferred->outputs, &forward->outputs}) {
      EXPECT_TRUE(outputs->at(1).value.tensor()->allclose(want));
      EXPECT_EQ(outputs->at(1).value.tensor()->sizes(), at::IntArrayRef({m}));
    }
  }
}

// One name, one error, no effect: the next calls do what they would have done at first.
TEST(PipeGather, OutputsThatDoNotJoinFailTheCallBeforeItHasAnyEffect) {
  const auto uneven = [](const Batch& in, const LayerContext& context, const Tensors& own) {
    const at::Tensor y = in.TensorAt(0).mul(own.at(0));
    return Batch::Tuple({y, y.narrow(1, 0, context.micro_batch.value() % 2 + 1)});
  };
  PipeWorld world;
  const LayerSpec norm = Built("batch_norm", {{"features", int64_t{2}}});
  const PipelineSpec spec = Pipe({norm, Function({.forward = uneven, .parameters = {{2}}})}, {1, 1}, 2);
  auto failing = world.Make(spec);
  auto sound = world.Make(spec);
  const ContributionRequest request = Contribution(Range({4, 2}), Range({4, 2}).cos());
  const absl::Status refused = failing->Forward(Ask(request.inputs)).status();
  EXPECT_EQ(ReasonOf(refused), "TENSOR_SIGNATURE") << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("Sizes of tensors must match except in dimension 0"));
  for (Pipeline* pipeline : {failing.get(), sound.get()}) {
    ASSERT_TRUE(pipeline->TrainStep(request, {}).ok());
    ASSERT_TRUE(pipeline->ForwardBackward(request).ok());
    ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
  }
  EXPECT_TRUE(SameTensors(failing->ExportState(true).value(), sound->ExportState(true).value()));
}

TEST(PipeGather, OutputsBeyondWhatAResultMayHoldFailTheCallBeforeItHasAnyEffect) {
  const auto texts = [](const Batch& in, const LayerContext&, const Tensors& own) {
    return Batch::Tuple({Value(in.TensorAt(0).mul(own.at(0))), Value(std::string(600 << 10, 'x'))});
  };
  PipeWorld world;
  const LayerSpec norm = Built("batch_norm", {{"features", int64_t{2}}});
  PipelineSpec spec =
      Pipe({norm, Function({.forward = texts, .parameters = {{2}}, .outputs = {"y", "words"}})}, {1, 1}, 2);
  spec.loss.output = "y";
  auto failing = world.Make(spec);
  auto sound = world.Make(spec);
  const ContributionRequest request = Contribution(Range({4, 2}), Range({4, 2}).cos());
  ContributionRequest keeping = request;
  keeping.outputs = {"words"};
  for (const absl::Status& refused :
       {failing->TrainStep(keeping, {}).status(), failing->ForwardBackward(keeping).status(),
        failing->Forward(Ask(request.inputs)).status(), world.Infer(*failing, request.inputs).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_EQ(ReasonOf(refused), "MESSAGE_TOO_LARGE");
    EXPECT_EQ(ValuesOf(refused)["field"], "outputs[words]");
  }
  EXPECT_EQ(failing->step(), 0);
  EXPECT_FALSE(failing->accumulating());
  for (Pipeline* pipeline : {failing.get(), sound.get()}) {
    ASSERT_TRUE(pipeline->TrainStep(request, {}).ok());
    ASSERT_TRUE(pipeline->ForwardBackward(request).ok());
    ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
  }
  EXPECT_TRUE(SameTensors(failing->ExportState(true).value(), sound->ExportState(true).value()));
}

TEST(PipeGather, TheServersLossIsAScalarWeightedByTheSizesOfTheMicroBatches) {
  PipeWorld world;
  const PipelineSpec spec = Pipe({Function({.forward = Multiply, .parameters = {{3}}}), Function(PassOn)}, {1, 1}, 4);
  auto pipeline = world.Make(spec);
  const at::Tensor x = Range({7, 3});  // 2, 2, 2 and 1 rows
  const at::Tensor target = at::ones({7, 3});
  auto outcome = pipeline->ForwardBackward(Contribution(x, target));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const double mean = x.mul(Range({3})).sub(target).pow(2).mean().item().toDouble();
  EXPECT_NEAR(*outcome->loss, mean, 1e-6);
}

TEST(PipeGather, AWholeInputComesBackOncePerMicroBatch) {
  PipeWorld world;
  const at::Tensor whole = Range({2, 2});
  const auto spec = Pipe({Function(PassOn), Function(PassOn)}, {1, 1}, 3);
  const NamedValues outputs = InferAll(world, spec, Inputs({Value(Range({6, 1})), Value(WholeTensor{whole})}));
  EXPECT_TRUE(at::equal(*outputs.at(0).value.tensor(), Range({6, 1})));
  EXPECT_TRUE(at::equal(*outputs.at(1).value.tensor(), at::cat({whole, whole, whole})));
}

// --- Forms ---

TEST(PipeForms, ATupleOfOneStaysOne) {
  PipeWorld world;
  for (const bool tuple : {true, false}) {
    std::vector<bool> atomic;
    const auto layer = [&](const Batch& inputs, const LayerContext&, const Tensors&) {
      atomic.push_back(inputs.atomic());
      return inputs;
    };
    const PipelineSpec spec = Pipe({Function(layer), Function(layer), Function(layer)}, {2, 1}, 2);
    NamedValues input = Input(Range({2, 1}));
    input.tuple = tuple;
    const NamedValues outputs = InferAll(world, spec, input);
    EXPECT_EQ(atomic, std::vector<bool>(6, !tuple));
    EXPECT_EQ(outputs.tuple, tuple);
    ASSERT_EQ(outputs.size(), 1);
    EXPECT_TRUE(outputs[0].value.is_tensor());
  }
}

TEST(PipeForms, AListIsOneArgumentAndATupleSeveral) {
  PipeWorld world;
  std::vector<std::string> seen;
  const auto note = [&](const Batch& inputs, const LayerContext&, const Tensors&) {
    seen.push_back(absl::StrCat(inputs.atomic() ? "value " : "tuple ", TypesText(inputs)));
    return inputs;
  };
  const auto list = [](const Batch& inputs, const LayerContext&, const Tensors&) {
    return Batch(Value::List({inputs[0], Value(3)}));
  };
  const auto tensor_of_list = [&](const Batch& inputs, const LayerContext& context, const Tensors& parameters) {
    note(inputs, context, parameters);
    return Batch(inputs[0].list()->at(0));
  };
  InferAll(world, Pipe({Function(list), Function(tensor_of_list), Function(note)}, {2, 1}), Input(Range({2, 1})));
  EXPECT_THAT(seen, ElementsAre("value (list)", "value (Tensor)"));

  seen.clear();
  const auto tuple = [](const Batch& inputs, const LayerContext&, const Tensors&) {
    return Batch::Tuple({inputs[0], Value::List({inputs[0], Value(3)})});
  };
  const NamedValues outputs = InferAll(world, Pipe({Function(tuple), Function(note)}, {1, 1}, 2), Input(Range({2, 1})));
  EXPECT_THAT(seen, ElementsAre("tuple (Tensor, list)", "tuple (Tensor, list)"));
  EXPECT_EQ(outputs.at(1).value.list()->size(), 2);  // one list per micro-batch
  EXPECT_EQ(outputs[1].value.list()->at(0).list()->size(), 2);
}

// Over a cut a list is one argument, as within a stage; out of the model it is its items, joined.
TEST(PipeForms, AListIsOneArgumentOverCutsAndSeveralOutputs) {
  PipeWorld world;
  bool lists = true;
  const auto pair = [](const Batch& in, const LayerContext&, const Tensors& own) {
    return Batch(Value::List({in[0], Value(in.TensorAt(0).mul(own.at(0)))}));
  };
  const auto swap = [&](const Batch& in, const LayerContext&, const Tensors&) {
    lists = lists && in.atomic() && in[0].list() != nullptr && in[0].list()->size() == 2;
    return Batch(Value::List({in[0].list()->at(1), in[0].list()->at(0)}));
  };
  const at::Tensor x = Range({4, 2});
  for (const CheckpointMode mode : kModes) {
    std::optional<NamedTensors> first;
    for (const std::vector<int>& balance : {std::vector<int>{3}, std::vector<int>{1, 2}, std::vector<int>{1, 1, 1}}) {
      const std::vector<LayerSpec> layers = {Function({.forward = pair, .parameters = {{2}}}), Function(swap),
                                             Function(swap)};
      auto pipeline = world.Make(Pipe(layers, balance, 2, mode));
      auto forward = pipeline->Forward(Ask(Input(x)));
      ASSERT_TRUE(forward.ok()) << forward.status();
      ASSERT_EQ(forward->outputs.size(), 2);
      EXPECT_TRUE(at::equal(*forward->outputs[0].value.tensor(), x));
      EXPECT_TRUE(at::equal(*forward->outputs[1].value.tensor(), x.mul(Range({2}))));
      // Its items have gradients over every cut.
      ASSERT_TRUE(pipeline->Backward(forward->graph, {{"output0", x}, {"output1", x.add(1)}}, false).ok());
      ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
      const NamedTensors state = pipeline->ExportState(true).value();
      if (!first.has_value()) first = state;
      EXPECT_TRUE(SameTensors(state, *first));
      EXPECT_TRUE(at::allclose(ParametersOf(layers[0])[0], Range({2}) - x.mul(x.add(1)).sum(0)));
    }
  }
  EXPECT_TRUE(lists);
}

TEST(PipeForms, AListWithoutTensorsIsRefused) {
  PipeWorld world;
  const auto list = [](const Batch&, const LayerContext&, const Tensors&) { return Batch(Value::List({Value(1)})); };
  const absl::Status status = InferFails(world, Pipe({Function(list), Function(PassOn)}, {1, 1}), Input(Range({2, 1})));
  EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("Only Tensor or Tuple of Tensor output is supported"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No tensors found in batch: (int)"));
}

// What was given with the call, and views, are results of their own.
TEST(PipeValues, TensorsInsideOfValuesLeaveAsCopiesWithoutAGraph) {
  PipeWorld world;
  at::Tensor own;
  const auto layer = [&](const Batch& in, const LayerContext&, const Tensors& weights) {
    own = weights.at(0);
    return Batch::Tuple(
        {in[0], Value::Dict({{"part", Value(in.TensorAt(0).mul(own).narrow(1, 0, 1))}, {"weight", Value(own)}})});
  };
  const at::Tensor x = Range({4, 2});
  const PipelineSpec spec = Pipe({Function({.forward = layer, .parameters = {{2}}}), Function(PassOn)}, {1, 1}, 2);
  auto pipeline = world.Make(spec);
  auto forward = pipeline->Forward(Ask(Input(x)));
  ASSERT_TRUE(forward.ok()) << forward.status();
  const ValueList& lists = *forward->outputs.at(1).value.list();
  ASSERT_EQ(lists.size(), 2u);
  for (size_t m = 0; m < lists.size(); ++m) {
    const at::Tensor part = *lists[m].dict()->at(0).second.tensor();
    EXPECT_TRUE(at::equal(part, x.mul(own).narrow(0, static_cast<int64_t>(m) * 2, 2).narrow(1, 0, 1)));
    EXPECT_FALSE(part.requires_grad());
    EXPECT_EQ(part.storage().nbytes(), part.nbytes());
    const at::Tensor weight = *lists[m].dict()->at(1).second.tensor();
    EXPECT_FALSE(weight.requires_grad());
    EXPECT_NE(weight.data_ptr(), own.data_ptr());
  }
}

TEST(PipeValues, NoRowsGiveNoRows) {
  PipeWorld world;
  const std::vector<LayerSpec> layers = {Linear(2, 3), Built("relu", {}), Linear(3, 4)};
  for (const int chunks : {1, 4}) {
    auto pipeline = world.Make(Pipe(layers, {2, 1}, chunks));
    auto answer = world.Infer(*pipeline, Input(at::zeros({0, 2})));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->outputs.at(0).value.tensor()->sizes(), at::IntArrayRef({0, 4}));
    const ContributionRequest batch = Contribution(at::zeros({0, 2}), at::zeros({0, 4}));
    absl::Status evaluated;
    pipeline->EvaluateAsync({.batch = batch, .metrics = {}, .priority = 0},
                            [&](const absl::StatusOr<RunOutcome>& outcome) { evaluated = outcome.status(); });
    for (const absl::Status& refused : {pipeline->TrainStep(batch, {}).status(), evaluated,
                                        pipeline->Forward(Ask(Input(at::zeros({0, 2})))).status()}) {
      EXPECT_EQ(ReasonOf(refused), "TENSOR_SIGNATURE") << refused;
      EXPECT_EQ(ValuesOf(refused)["field"], "inputs[0].shape");
      EXPECT_THAT(std::string(refused.message()), HasSubstr("must have at least one row to train on"));
    }
    EXPECT_EQ(pipeline->step(), 0);
  }
}

TEST(PipeValues, ATargetNeedsAnInputThatIsSplitAsItIs) {
  PipeWorld world;
  auto pipeline = world.Make(Pipe({Linear(2, 3)}, {1}, 2));
  NamedValues inputs = Input(Range({4, 2}));
  inputs.at(0).value = WholeTensor{Range({4, 2})};
  const int64_t rows = pipeline->CheckInputs(inputs, /*needs_rows=*/true).value();
  const absl::Status refused = pipeline->CheckTarget(Range({4, 3}), {}, std::nullopt, rows);
  EXPECT_EQ(ReasonOf(refused), "TENSOR_SIGNATURE") << refused;
  EXPECT_EQ(ValuesOf(refused)["field"], "inputs");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at least one must be a tensor that is split into rows"));
  EXPECT_EQ(ValuesOf(refused)["value"], "only whole tensors and plain values");
}

TEST(PipeForms, NoneIsLegalInInputsBetweenStagesAndInOutputs) {
  PipeWorld world;
  std::vector<bool> none;
  const auto layer = [&](const Batch& inputs, const LayerContext&, const Tensors&) {
    none.push_back(inputs[1].is_none());
    return inputs;
  };
  const auto spec = Pipe({Function(layer), Function(layer)}, {1, 1}, 3);
  const NamedValues outputs = InferAll(world, spec, Inputs({Value(Range({3, 1})), Value()}));
  EXPECT_EQ(none, std::vector<bool>(6, true));
  ASSERT_EQ(outputs.at(1).value.list()->size(), 3);
  for (const Value& value : *outputs[1].value.list()) EXPECT_TRUE(value.is_none());
}

TEST(PipeForms, WithoutATensorThereIsNothingToSplit) {
  PipeWorld world;
  const std::pair<std::vector<Value>, std::string> cases[] = {
      {{}, "inputs do not have any tensors: ()"},
      {{Value(1), Value("a")}, "inputs do not have any tensors: (int, str)"},
      {{Value(WholeTensor{Range({2, 1})})}, "inputs do not have any tensors: (NoChunk)"}};
  for (const auto& [values, sentence] : cases) {
    const absl::Status status = InferFails(world, Pipe({Function(PassOn)}, {1}), Inputs(values));
    EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
    EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
  }
}

TEST(PipeForms, ATupleBecomesTheArgumentsOfTheNextLayer) {
  PipeWorld world;
  const auto pair = [](const Batch& in, const LayerContext&, const Tensors&) {
    return Batch::Tuple({in[0], Value(in.TensorAt(0).mul(2))});
  };
  const auto sum = [](const Batch& in, const LayerContext&, const Tensors&) {
    EXPECT_EQ(in.size(), 2);
    return Batch(in.TensorAt(0).add(in.TensorAt(1)));
  };
  const at::Tensor x = Range({4, 2});
  for (const auto& balance : {std::vector<int>{2}, std::vector<int>{1, 1}}) {
    const NamedValues outputs = InferAll(world, Pipe({Function(pair), Function(sum)}, balance, 2), Input(x));
    EXPECT_TRUE(at::equal(*outputs.at(0).value.tensor(), x.add(x.mul(2))));
  }
}

TEST(PipeForms, ALayerOfOneInputRefusesTwo) {
  PipeWorld world;
  const auto pair = [](const Batch& in, const LayerContext&, const Tensors&) { return Batch::Tuple({in[0], in[0]}); };
  const absl::Status status = InferFails(world, Pipe({Function(pair), Linear(2, 2)}, {1, 1}), Input(Range({2, 2})));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ValuesOf(status)["stage"], "1");
}

TEST(PipeForms, TheOldFormRefusesWhatIsNoTensor) {
  PipeWorld world;
  const auto pair = [](const Batch& in, const LayerContext&, const Tensors&) {
    return Batch::Tuple({in.atomic() && in[0].tuple() != nullptr ? in[0].tuple()->at(0) : in[0], Value("hello")});
  };
  // A tuple with a text: as an input (also nested or a list), and as one layer's output.
  const at::Tensor x = Range({2, 2});
  const std::pair<NamedValues, std::string> cases[] = {
      {Inputs({Value(x), Value("hello")}), "expected Tensor, but got str"},
      {Inputs({Value(x), Value::Tuple({Value(x)})}), "expected Tensor, but got tuple"},
      {Inputs({Value(x), Value::List({Value(x)})}), "expected Tensor, but got list"},
      {Input(x), "expected Tensor, but got str"},
  };
  for (const auto& [inputs, sentence] : cases) {
    PipelineSpec spec = Pipe({Function(pair), Function(PassOn)}, {1, 1});
    spec.model.tuple_as_one_argument = true;
    const absl::Status status = InferFails(world, spec, inputs);
    EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
    EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
    spec.model.tuple_as_one_argument = false;  // the same passes in the new form
    EXPECT_TRUE(world.Infer(*world.Make(spec), inputs).ok());
  }
}

TEST(PipeForms, NestedInputsAreOfTheOldFormOnly) {
  PipeWorld world;
  const at::Tensor x = Range({2, 2});
  for (const Value& nested : {Value::Tuple({Value::Tuple({Value(x)})}), Value::List({Value(x), Value(x)})}) {
    PipelineSpec spec = Pipe({Function(PassOn)}, {1});
    spec.model.tuple_as_one_argument = true;
    EXPECT_EQ(ReasonOf(InferFails(world, spec, Inputs({Value(x), nested}))), "WRONG_TYPE");
  }
}

// --- What PT's tests add ---

TEST(PipeValues, PlainValuesPassInEveryMode) {
  // 5 micro-batches, 7 outputs: two tensors and five values that come back as lists.
  const auto layer = [](const Batch& in, const LayerContext&, const Tensors& weights) {
    std::vector<Value> values = in.values();
    values[0] = Value(values[0].tensor()->mul(weights[0]));
    values[1] = Value(values[1].tensor()->add(*values[2].integer()));
    return Batch::Tuple(std::move(values));
  };
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    SCOPED_TRACE(ModeName(mode));
    const PipelineSpec spec =
        Pipe({Function({.forward = layer, .parameters = {{3}}}), Function({.forward = layer, .parameters = {{3}}})},
             {1, 1}, 5, mode);
    auto pipeline = world.Make(spec);
    const at::Tensor x = Range({10, 3});
    const NamedValues inputs = Inputs({Value(x), Value(x), Value(7), Value(true), Value("s"), Value(), Value(2.5)});
    auto forward = pipeline->Forward(Ask(inputs));
    ASSERT_TRUE(forward.ok()) << forward.status();
    const NamedValues& outputs = forward->outputs;
    ASSERT_EQ(outputs.size(), 7);
    EXPECT_TRUE(at::equal(*outputs[0].value.tensor(), x.mul(Range({3})).mul(Range({3}))));
    EXPECT_TRUE(at::equal(*outputs[1].value.tensor(), x.add(7).add(7)));
    for (size_t i = 2; i < 7; ++i) ASSERT_EQ(outputs[i].value.list()->size(), 5) << i;
    for (int m = 0; m < 5; ++m) {
      EXPECT_EQ(*outputs[2].value.list()->at(m).integer(), 7);
      EXPECT_TRUE(*outputs[3].value.list()->at(m).boolean());
      EXPECT_EQ(*outputs[4].value.list()->at(m).text(), "s");
      EXPECT_TRUE(outputs[5].value.list()->at(m).is_none());
      EXPECT_EQ(*outputs[6].value.list()->at(m).number(), 2.5);
    }
    EXPECT_TRUE(
        pipeline->Backward(forward->graph, {{"output0", at::ones({10, 3})}, {"output1", at::ones({10, 3})}}, false)
            .ok());
  }
}

TEST(PipeValues, ATargetThatIsANumberIsRefusedByName) {
  PipeWorld world;
  auto pipeline = world.Make(Pipe({Function(PassOn)}, {1}));
  const absl::Status status = pipeline->ForwardBackward(Contribution(Range({2, 2}), at::zeros({}))).status();
  EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE") << status;
  EXPECT_EQ(ValuesOf(status)["field"], "target.shape");
}

TEST(PipeValues, AStageWithoutATensorAmongItsOutputsIsRefused) {
  PipeWorld world;
  for (const std::vector<int>& balance : {std::vector<int>{1, 1}, std::vector<int>{2}}) {
    const auto number = [](const Batch&, const LayerContext&, const Tensors&) { return Batch(Value(5)); };
    const absl::Status status =
        InferFails(world, Pipe({Function(PassOn), Function(number)}, balance, 2), Input(Range({4, 1})));
    EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
    EXPECT_THAT(std::string(status.message()), HasSubstr("No tensors found in batch: (int)"));
  }
}

TEST(PipeValues, OnlyTheNumberOfPiecesMustAgree) {
  PipeWorld world;
  const auto first = [](const Batch& in, const LayerContext&, const Tensors&) { return Batch::Tuple({in[0], in[1]}); };
  const PipelineSpec spec = Pipe({Function(first)}, {1}, 5);
  const NamedValues outputs = InferAll(world, spec, Inputs({Value(Range({3, 1})), Value(Range({6, 1}))}));
  EXPECT_TRUE(at::equal(*outputs.at(0).value.tensor(), Range({3, 1})));
  EXPECT_TRUE(at::equal(*outputs.at(1).value.tensor(), Range({6, 1})));
  auto pipeline = world.Make(spec);  // gradients have the rows of their output
  auto forward = pipeline->Forward(Ask(Inputs({Value(Range({3, 1})), Value(Range({6, 1}))}), true));
  ASSERT_TRUE(forward.ok()) << forward.status();
  auto backward = pipeline->Backward(forward->graph, {{"output0", Range({3, 1})}, {"output1", Range({6, 1})}}, false);
  ASSERT_TRUE(backward.ok()) << backward.status();
  EXPECT_TRUE(at::equal(*backward->input_gradients.at(0).value.tensor(), Range({3, 1})));
  EXPECT_TRUE(at::equal(*backward->input_gradients.at(1).value.tensor(), Range({6, 1})));
  const absl::Status status = InferFails(world, spec, Inputs({Value(Range({3, 1})), Value(Range({4, 1}))}));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("Found different number of chunks produced for inputs: 3 and 4"));
}

TEST(PipeValues, InEveryModeEveryMicroBatchGetsAll) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    int64_t rows = 0;
    const auto layer = [&](const Batch& in, const LayerContext&, const Tensors& weights) {
      rows += in.TensorAt(1).size(0);
      return Batch::Tuple({Value(in.TensorAt(0).mul(weights[0])), in[1]});
    };
    auto pipeline = world.Make(Pipe({Function({.forward = layer, .parameters = {{1}}})}, {1}, 5, mode));
    const at::Tensor whole = Range({4, 2});
    auto forward = pipeline->Forward(Ask(Inputs({Value(Range({5, 2})), Value(WholeTensor{whole})}), true));
    ASSERT_TRUE(forward.ok()) << forward.status();
    EXPECT_EQ(rows, 5 * 4);
    EXPECT_TRUE(at::equal(*forward->outputs.at(1).value.tensor(), whole.repeat({5, 1})));
    const NamedTensors ones = {{"output0", at::ones({5, 2})}, {"output1", at::ones({20, 2})}};
    auto backward = pipeline->Backward(forward->graph, ones, false);
    ASSERT_TRUE(backward.ok()) << backward.status();
    EXPECT_TRUE(at::equal(*backward->input_gradients.at(1).value.tensor(), at::ones({4, 2}).mul(5)));  // of all uses
  }
}

TEST(PipeValues, SeveralInputsComeAsArgumentsAndEachHasItsGradient) {
  PipeWorld world;
  const auto multiply = [](const Batch& in, const LayerContext&, const Tensors&) {
    return Batch(in.TensorAt(0).mul(in.TensorAt(1)).add(in.TensorAt(2)));
  };
  const at::Tensor a = Range({4, 2});
  const at::Tensor b = Range({4, 2}).add(1);
  const at::Tensor c = Range({4, 2}).add(2);
  auto pipeline = world.Make(Pipe({Function(PassOn), Function(multiply)}, {1, 1}, 2));
  auto forward = pipeline->Forward(Ask(Inputs({Value(a), Value(b), Value(c)}), true));
  ASSERT_TRUE(forward.ok()) << forward.status();
  EXPECT_TRUE(at::equal(*forward->outputs.at(0).value.tensor(), a.mul(b).add(c)));
  auto backward = pipeline->Backward(forward->graph, {{"output", at::ones({4, 2})}}, false);
  ASSERT_TRUE(backward.ok()) << backward.status();
  ASSERT_EQ(backward->input_gradients.size(), 3);
  EXPECT_TRUE(at::equal(*backward->input_gradients[0].value.tensor(), b));
  EXPECT_TRUE(at::equal(*backward->input_gradients[1].value.tensor(), a));
  EXPECT_TRUE(at::equal(*backward->input_gradients[2].value.tensor(), at::ones({4, 2})));
  EXPECT_EQ(backward->input_gradients[0].name, "input0");
  EXPECT_EQ(backward->input_gradients[2].name, "input2");
}

TEST(PipeValues, OnlyFloatingTensorsCarryGradientsBetweenStages) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    std::vector<std::vector<bool>> requires_grad;
    const auto split = [](const Batch& in, const LayerContext&, const Tensors& weights) {
      const at::Tensor y = in.TensorAt(0).mul(weights[0]);
      return Batch::Tuple(
          {Value(y), Value(y.gt(0.5)), Value(y.mul(10).toType(at::kLong)), Value(8), Value(y.to(at::kDouble))});
    };
    const auto join = [&](const Batch& in, const LayerContext&, const Tensors&) {
      std::vector<bool> flags;
      for (const Value& value : in) flags.push_back(value.is_tensor() && value.tensor()->requires_grad());
      if (at::GradMode::is_enabled()) requires_grad.push_back(flags);
      return Batch(in.TensorAt(0).mul(in.TensorAt(1)).add(in.TensorAt(2)).add(in.TensorAt(4).to(at::kFloat)));
    };
    const PipelineSpec spec =
        Pipe({Function({.forward = split, .parameters = {{2}}}), Function(join)}, {1, 1}, 2, mode);
    auto pipeline = world.Make(spec);
    ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({4, 2}), at::zeros({4, 2})), {}).ok());
    ASSERT_EQ(requires_grad.size(), 2);
    for (const auto& flags : requires_grad) EXPECT_THAT(flags, ElementsAre(true, false, false, false, true));
    PlainReference plain = PlainOf(spec);
    plain.TrainStep({Value(Range({4, 2}))}, at::zeros({4, 2}), 2);
    EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode);
  }
}

TEST(PipeValues, AMissingGradientStaysMissing) {
  PipeWorld world;
  for (CheckpointMode mode : kModes) {
    SCOPED_TRACE(ModeName(mode));
    // The second value is not used by stage 1, the third only without its graph: neither has a gradient to send back.
    const auto three = [](const Batch& in, const LayerContext&, const Tensors& weights) {
      return Batch::Tuple({Value(in.TensorAt(0).mul(weights[0])), Value(in.TensorAt(1).mul(weights[1])),
                           Value(in.TensorAt(0).mul(weights[2]))});
    };
    const auto one = [](const Batch& in, const LayerContext&, const Tensors&) {
      return Batch(in.TensorAt(0).add(in.TensorAt(2).detach()));
    };
    const LayerSpec first = Function({.forward = three, .parameters = {{1}, {1}, {1}}});
    auto pipeline = world.Make(Pipe({first, Function(one)}, {1, 1}, 2, mode));
    auto forward = pipeline->Forward(Ask(Inputs({Value(Range({4, 2})), Value(Range({4, 2}))}), true));
    ASSERT_TRUE(forward.ok()) << forward.status();
    auto backward = pipeline->Backward(forward->graph, {{"output", at::ones({4, 2})}}, false);
    ASSERT_TRUE(backward.ok()) << backward.status();
    EXPECT_TRUE(backward->input_gradients.at(0).value.is_tensor());
    EXPECT_TRUE(backward->input_gradients.at(1).value.is_none());
    const Tensors weights = ParametersOf(first);
    EXPECT_TRUE(weights[0].grad().defined());
    EXPECT_FALSE(weights[1].grad().defined());
    EXPECT_FALSE(weights[2].grad().defined());
  }
}

TEST(PipeValues, WhereOnlySomeMicroBatchesHaveAGradientTheOthersRowsAreZero) {
  PipeWorld world;
  const auto sometimes = [](const Batch& in, const LayerContext& context, const Tensors&) {
    const at::Tensor& x = in.TensorAt(0);
    return Batch(in.TensorAt(1).add(context.micro_batch.value() == 1 ? x.mul(3) : x.detach()));
  };
  const at::Tensor x = Range({5, 2});  // 2, 2 and 1 rows
  const PipelineSpec spec = Pipe({Function(sometimes)}, {1}, 3);
  auto pipeline = world.Make(spec);
  auto forward = pipeline->Forward(Ask(Inputs({Value(x), Value(x)}), true));
  ASSERT_TRUE(forward.ok()) << forward.status();
  auto backward = pipeline->Backward(forward->graph, {{"output", at::ones({5, 2})}}, false);
  ASSERT_TRUE(backward.ok()) << backward.status();
  const at::Tensor leaf = x.clone().requires_grad_(true);
  PlainReference plain = PlainOf(spec);
  for (const Batch& output : plain.Forward({Value(leaf), Value(x)}, 3)) {
    if (output.TensorAt(0).requires_grad()) output.TensorAt(0).backward(at::ones(output.TensorAt(0).sizes()));
  }
  EXPECT_TRUE(at::equal(*backward->input_gradients.at(0).value.tensor(), leaf.grad()));
}

// --- The pipe's own tests ---

// --- What a result holds ---

bool OwnsElements(const at::Tensor& tensor) {
  return tensor.storage().use_count() == 1 && tensor.storage().nbytes() == tensor.nbytes();
}

TEST(PipeResults, EachHoldsItsOwnElementsAndNothingElse) {
  struct Case {
    const char* name;
    LayerFunction forward;
  };
  const Case cases[] = {
      {"what the layer made", [](const Batch& inputs, auto&, auto&) { return inputs.TensorAt(0).mul(2); }},
      {"the input itself", PassOn},
      {"a slice", [](const Batch& inputs, auto&, auto&) { return inputs.TensorAt(0).mul(2).select(1, 3); }},
      {"one row for all", [](const Batch& inputs, auto&,
                             auto&) { return inputs.TensorAt(0).mul(2).slice(0, 0, 1).expand_as(inputs.TensorAt(0)); }},
      {"a parameter", [](const Batch&, auto&, const Tensors& parameters) { return parameters[0]; }},
      {"a view of a parameter",
       [](const Batch&, auto&, const Tensors& parameters) { return parameters[0].slice(0, 0, 2); }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    for (const int chunks : {1, 2}) {
      PipeWorld world;
      const at::Tensor x = Range({4, 4});
      const NamedValues outputs =
          InferAll(world, Pipe({Function({.forward = one.forward, .parameters = {{4, 4}}})}, {1}, chunks), Input(x));
      ASSERT_EQ(outputs.size(), 1);
      EXPECT_TRUE(OwnsElements(*outputs[0].value.tensor()));
    }
  }
}

TEST(PipeResults, WhatViewsAParameterStaysWhenTheParameterIsTrained) {
  PipeWorld world;
  const auto layer = [](const Batch& inputs, const LayerContext&, const Tensors& parameters) {
    return Batch::Tuple({Value(inputs.TensorAt(0).mul(parameters[0])), Value(parameters[0].view({1, 2}))});
  };
  auto pipeline = world.Make(Pipe({Function({.forward = layer, .parameters = {{2}}})}, {1}));
  const at::Tensor x = Range({3, 2});
  const at::Tensor initial = at::tensor({0.5, 1.0}, at::kFloat).view({1, 2});
  const auto inferred = world.Infer(*pipeline, Input(x));
  ASSERT_TRUE(inferred.ok()) << inferred.status();
  ASSERT_TRUE(pipeline->TrainStep(Contribution(x, at::zeros({3, 2})), {}).ok());
  EXPECT_TRUE(at::equal(*inferred->outputs[1].value.tensor(), initial));
  EXPECT_FALSE(at::equal(*world.Infer(*pipeline, Input(x))->outputs[1].value.tensor(), initial));
}

TEST(PipeResults, TheGradientOfAnInputHoldsItsOwnElements) {
  PipeWorld world;
  auto pipeline =
      world.Make(Pipe({Function([](const Batch& inputs, auto&, auto&) { return inputs.TensorAt(0).mul(1); })}, {1}));
  auto forward = pipeline->Forward(Ask(Input(Range({3, 2})), /*input_gradients=*/true));
  ASSERT_TRUE(forward.ok()) << forward.status();
  const at::Tensor gradient = at::ones({3, 2});
  const auto backward = pipeline->Backward(forward->graph, {{"output", gradient}}, /*retain_graph=*/false);
  ASSERT_TRUE(backward.ok()) << backward.status();
  EXPECT_TRUE(OwnsElements(*backward->input_gradients[0].value.tensor()));
}

// --- Turns ---

TEST(Pipe, TwoPipelinesOfOneDeviceTakeTurnsInSerialModeToo) {
  PipeWorld world;
  std::string order;
  const auto writes = [&order](char name) {
    return Function([&order, name](const Batch& inputs, const LayerContext&, const Tensors&) {
      order += name;
      return inputs;
    });
  };
  const auto a = world.Make(Pipe({writes('a')}, {1}, 3));
  const auto b = world.Make(Pipe({writes('b')}, {1}, 3));
  order.clear();
  int left = 2;
  absl::Notification done;
  for (Pipeline* pipeline : {a.get(), b.get()}) {
    pipeline->InferAsync(Ask(Input(Range({3, 2}))), [&](const absl::StatusOr<ForwardOutcome>& answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      if (--left == 0) done.Notify();
    });
  }
  world.pool().Wait(done);
  EXPECT_EQ(order, "ababab");
}

TEST(Pipe, BatchesThatDoNotDivideAreCut) {
  struct Case {
    int rows, chunks;
    std::vector<int64_t> sizes;
  };
  const Case cases[] = {
      {7, 4, {2, 2, 2, 1}}, {2, 4, {1, 1}}, {3, 1, {3}}, {30, 8, {4, 4, 4, 4, 4, 4, 4, 2}}, {4, 8, {1, 1, 1, 1}}};
  PipeWorld world;
  for (const Case& one : cases) {
    for (CheckpointMode mode : kModes) {
      SCOPED_TRACE(absl::StrCat(one.rows, " rows in ", one.chunks, ", ", ModeName(mode)));
      std::vector<int64_t> sizes;
      const auto note = [&](const Batch& in, const LayerContext& context, const Tensors&) {
        if (!context.recomputing) sizes.push_back(in.TensorAt(0).size(0));
        return in;
      };
      const PipelineSpec spec = Pipe({Function({.forward = Multiply, .parameters = {{2}}}), Function(note),
                                      Function({.forward = Multiply, .parameters = {{2}}})},
                                     {1, 2}, one.chunks, mode);
      auto pipeline = world.Make(spec);
      PlainReference plain = PlainOf(spec);
      const at::Tensor x = Range({one.rows, 2});
      const at::Tensor target = at::ones({one.rows, 2});
      auto outcome = pipeline->TrainStep(Contribution(x, target), {});
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_EQ(sizes, one.sizes);
      EXPECT_EQ(outcome->micro_batches, one.sizes.size());
      EXPECT_EQ(outcome->rows, one.rows);
      EXPECT_EQ(*outcome->loss, plain.TrainStep({Value(x)}, target, one.chunks).loss);
      EXPECT_TRUE(SameState(*pipeline, plain));
      auto answer = world.Infer(*pipeline, Input(x));
      EXPECT_TRUE(at::equal(*answer->outputs[0].value.tensor(), plain.Infer({Value(x)}, one.chunks)[0]));
    }
  }
}

TEST(Pipe, WhatAPipeIsMadeOfCanBeReadAndIsChecked) {
  PipeWorld world;
  PipelineSpec spec = Pipe({Linear(2, 2), Linear(2, 2), Linear(2, 2)}, {1, 2}, 3, CheckpointMode::kNever);
  auto pipeline = world.Make(spec);
  EXPECT_EQ(pipeline->plan().schedule.micro_batches, 3);
  EXPECT_EQ(pipeline->plan().schedule.checkpoint, CheckpointMode::kNever);
  ASSERT_EQ(pipeline->plan().stages.size(), 2);
  EXPECT_EQ(pipeline->plan().stages[0].layers.size(), 1);
  EXPECT_EQ(pipeline->plan().stages[1].layers.size(), 2);
  EXPECT_EQ(pipeline->plan().stages[0].device, "cpu:0");
  EXPECT_EQ(pipeline->plan().stages[1].device, "cpu:1");
  for (int chunks : {0, -1}) {
    PipelineSpec bad = spec;  // also wrong in what is checked later: layers, then the balance
    bad.schedule.micro_batches = chunks;
    bad.model.layers[0].options = {};
    bad.cut.balance = {1, 1};
    const absl::Status status = world.TryMake(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("number of micro-batches must be a positive integer"));
  }
  spec.cut.balance = {1, 1};
  spec.model.layers[2] = Built("stash");
  EXPECT_THAT(std::string(world.TryMake(spec).status().message()),
              HasSubstr("no module declared 'skip' as poppable but stashed"));  // PIPE-13: before the balance
  spec.model.layers[2] = Linear(2, 2);
  EXPECT_THAT(std::string(world.TryMake(spec).status().message()),
              HasSubstr("module and sum of balance have different length (module: 3, sum of balance: 2)"));
}

TEST(Pipe, SkipsAreVerifiedWhenThePipeIsMade) {
  PipeWorld world;
  const absl::Status status = world.TryMake(Pipe({Linear(2, 2), Built("pop_add", {}, "popper")}, {1, 1})).status();
  EXPECT_EQ(ReasonOf(status), "WRONG_TYPE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("one or more pairs of stash and pop do not match:\n\n* "
                                                       "'popper' declared 'skip' as poppable but it was not stashed"));
}

TEST(Pipe, NoLayerStandsThereTwice) {
  PipeWorld world;
  EXPECT_THAT(std::string(world.TryMake(Pipe({Linear(2, 2, "a"), Linear(2, 2, "a")}, {1, 1})).status().message()),
              HasSubstr("module with duplicate children is not supported"));
}

TEST(Pipe, TheSpecificationStaysAsItIs) {
  PipeWorld world;
  PipelineSpec spec = Pipe({Built("batch_norm", {{"features", int64_t{2}}}, "norm"), Linear(2, 2)}, {1, 1}, 2);
  spec.model.deferred_batch_norm = true;
  const PipelineSpec before = spec;
  auto deferred = world.Make(spec);
  ASSERT_TRUE(deferred->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {}).ok());
  EXPECT_EQ(spec.model.layers[0].kind, before.model.layers[0].kind);
  EXPECT_EQ(spec.model.layers[0].options, before.model.layers[0].options);
  // A pipe made of the same layers without deferring is none of the converted one's business.
  spec.model.deferred_batch_norm = false;
  auto plain = PlainOf(spec);
  EXPECT_TRUE(SameState(*world.Make(spec), plain));
}

TEST(Pipe, LayersStandInOrderAcrossStages) {
  PipeWorld world;
  for (const std::vector<int>& balance : {std::vector<int>{2}, std::vector<int>{1, 1}}) {
    auto pipeline = world.Make(Pipe({Linear(2, 2, "a"), Linear(2, 2, "b")}, balance));
    const Plan& plan = pipeline->plan();
    std::vector<std::string> names;
    for (const LayerPlan& layer : plan.layers) names.push_back(layer.name);
    EXPECT_THAT(names, ElementsAre("a", "b"));
    EXPECT_EQ(plan.stages.size(), balance.size());
    std::vector<std::string> by_stage;
    for (const StagePlan& stage : plan.stages) {
      EXPECT_EQ(stage.first_layer, static_cast<int>(by_stage.size()));
      by_stage.insert(by_stage.end(), stage.layers.begin(), stage.layers.end());
    }
    EXPECT_EQ(by_stage, names);
  }
}

TEST(Pipe, StateHasNamesByLayerWhateverTheCut) {
  PipeWorld world;
  std::vector<std::vector<std::string>> names;
  for (const std::vector<int>& balance : {std::vector<int>{3}, std::vector<int>{1, 2}}) {
    auto pipeline = world.Make(Pipe({Linear(2, 2, "a"), Linear(2, 2, "b"), Linear(2, 2, "c")}, balance));
    names.emplace_back();
    for (const NamedTensor& tensor : NamedTensors(pipeline->ExportState(false).value()))
      names.back().push_back(tensor.name);
  }
  EXPECT_THAT(names[0], ElementsAre("a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias"));
  EXPECT_EQ(names[0], names[1]);  // whatever the cut
}

TEST(Pipe, CastingIsAnOptionOfTheModel) {
  PipeWorld world;
  const std::pair<const char*, at::ScalarType> casts[] = {
      {"fp64", at::kDouble}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};
  for (const auto& [name, type] : casts) {
    PipelineSpec spec = Pipe({Linear(2, 2), Linear(2, 2)}, {1, 1}, 2);
    spec.model.dtype = name;
    auto pipeline = world.Make(spec);
    for (const NamedTensor& tensor : NamedTensors(pipeline->ExportState(false).value()))
      EXPECT_EQ(tensor.tensor.scalar_type(), type);
    auto answer = world.Infer(*pipeline, Input(Range({4, 2}).to(type)));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->outputs[0].value.tensor()->scalar_type(), type);
  }
}

TEST(Pipe, InferenceRunsOnceWithoutGraphAndTrainingMode) {
  PipeWorld world;
  std::vector<std::string> log;
  const auto note = [&](const Batch& in, const LayerContext& context, const Tensors& weights) {
    const at::Tensor y = in.TensorAt(0).mul(weights[0]);
    log.push_back(absl::StrCat(context.training ? "train" : "eval", context.recomputing ? " again" : "",
                               y.requires_grad() ? " graph" : ""));
    return Batch(y);
  };
  const LayerSpec last = Function({.forward = note, .parameters = {{1}}});
  auto pipeline = world.Make(Pipe({Function(PassOn), last}, {1, 1}, 2, CheckpointMode::kAlways));
  auto answer = world.Infer(*pipeline, Input(Range({4, 1})));
  ASSERT_TRUE(answer.ok());
  EXPECT_FALSE(answer->outputs[0].value.tensor()->requires_grad());
  EXPECT_EQ(answer->graph, nullptr);
  EXPECT_THAT(log, ElementsAre("eval", "eval"));
  log.clear();
  ASSERT_TRUE(pipeline->ForwardBackward(Contribution(Range({4, 1}), at::ones({4, 1}))).ok());
  EXPECT_THAT(log, ElementsAre("train", "train", "train again graph", "train again graph"));
  EXPECT_FALSE(at::GradMode::is_enabled() == false);  // the caller's mode is its own
}

TEST(Pipe, InputsAreCheckedSplitRunAndJoined) {
  PipeWorld world;
  std::vector<int64_t> rows;
  const auto twice = [&](const Batch& in, const LayerContext&, const Tensors&) {
    rows.push_back(in.TensorAt(0).size(0));
    return Batch(in.TensorAt(0).mul(2));
  };
  auto pipeline = world.Make(Pipe({Function(twice), Built("relu")}, {1, 1}, 3));
  const auto outcome = world.Infer(*pipeline, Input(Range({5, 2})));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_THAT(rows, ElementsAre(2, 2, 1));
  EXPECT_TRUE(at::equal(*outcome->outputs.at(0).value.tensor(), Range({5, 2}).mul(2)));
  EXPECT_EQ(ReasonOf(world.Infer(*pipeline, Input(Value(5))).status()), "WRONG_TYPE");
  EXPECT_EQ(rows.size(), 3) << "what is refused does not run";
}

TEST(Pipe, BackwardsRunOneAtATimeInAscendingOrderOnEachStage) {
  for (CheckpointMode mode : kModes) {
    PipeWorld world;
    std::vector<std::vector<int>> backwards(2);
    std::vector<LayerSpec> layers;
    for (int stage : {0, 1}) {
      const auto noted = [&backwards, stage](const Batch& in, const LayerContext& context, const Tensors& weights) {
        const at::Tensor out = in.TensorAt(0).mul(weights[0]);
        const int micro_batch = context.micro_batch.value();
        if (out.requires_grad()) {
          out.register_hook(
              [&backwards, stage, micro_batch](const at::Tensor&) { backwards[stage].push_back(micro_batch); });
        }
        return Batch(out);
      };
      layers.push_back(Function({.forward = noted, .parameters = {{1}}}));
    }
    auto pipeline = world.Make(Pipe(layers, {1, 1}, 4, mode));
    ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({4, 2}), at::ones({4, 2})), {}).ok());
    EXPECT_THAT(backwards[0], ElementsAre(0, 1, 2, 3)) << ModeName(mode);
    EXPECT_THAT(backwards[1], ElementsAre(0, 1, 2, 3)) << ModeName(mode);
  }
}

TEST(Pipe, AnEmptyModelGivesItsInputBack) {
  PipeWorld world;
  PipelineSpec spec;
  spec.model.name = "identity";
  spec.schedule = {"gpipe", 2, CheckpointMode::kExceptLast};
  spec.cut.stages = 1;
  spec.optimizer = Pipe({}, {}).optimizer;
  const at::Tensor x = Range({4, 2});
  const NamedValues outputs = InferAll(world, spec, Input(x));
  EXPECT_TRUE(at::equal(*outputs.at(0).value.tensor(), x));
  EXPECT_EQ(ReasonOf(InferFails(world, spec, Input(Value(5)))), "WRONG_TYPE");  // type-checked
}

TEST(Pipe, TheResultIsOnTheLastStageWhereTheTargetIsCompared) {
  PipeWorld world;
  auto pipeline = world.Make(Pipe({Linear(2, 3), Linear(3, 4)}, {1, 1}, 2));
  EXPECT_THAT(pipeline->signature().inputs.at(0).shape, ElementsAre(-1, 2));
  EXPECT_THAT(pipeline->signature().outputs.at(0).shape, ElementsAre(-1, 4));
  EXPECT_THAT(pipeline->signature().targets.at(0).shape, ElementsAre(-1, 4));
}

TEST(Pipe, OnlyMicroBatchesBelowTheStopAreCheckpointed) {
  struct Case {
    int rows, chunks;
    CheckpointMode mode;
    std::vector<int> recomputed;  // on each stage
  };
  const Case cases[] = {{6, 4, CheckpointMode::kExceptLast, {0, 1}}, {6, 4, CheckpointMode::kAlways, {0, 1, 2}},
                        {6, 4, CheckpointMode::kNever, {}},          {4, 2, CheckpointMode::kAlways, {0, 1}},
                        {4, 2, CheckpointMode::kExceptLast, {0}},    {4, 2, CheckpointMode::kNever, {}},
                        {2, 5, CheckpointMode::kExceptLast, {0}},    {3, 1, CheckpointMode::kExceptLast, {}}};
  PipeWorld world;
  for (const Case& one : cases) {
    std::vector<std::vector<int>> recomputed(2);
    std::vector<LayerSpec> layers;
    for (int stage : {0, 1}) {
      const auto note = [&recomputed, stage](const Batch& in, const LayerContext& context, const Tensors& weights) {
        if (context.recomputing) recomputed[stage].push_back(context.micro_batch.value());
        return Batch(in.TensorAt(0).mul(weights[0]));
      };
      layers.push_back(Function({.forward = note, .parameters = {{1}}}));
    }
    auto pipeline = world.Make(Pipe(layers, {1, 1}, one.chunks, one.mode));
    ASSERT_TRUE(pipeline->TrainStep(Contribution(Range({one.rows, 1}), at::ones({one.rows, 1})), {}).ok());
    EXPECT_EQ(recomputed[0], one.recomputed) << one.rows << " in " << one.chunks << " " << ModeName(one.mode);
    EXPECT_EQ(recomputed[1], one.recomputed);
  }
}

TEST(Pipe, GradientsEqualThoseOfTheBareModel) {
  PipeWorld world;
  const std::vector<LayerSpec> layers = {Linear(1, 2), Linear(2, 4), Linear(4, 2), Linear(2, 1)};
  const at::Tensor x = Range({8, 1});
  const at::Tensor gradient = at::ones({8, 1}).div_(8);
  for (CheckpointMode mode : kModes) {
    const PipelineSpec spec = Pipe(layers, {2, 2}, 4, mode);
    auto pipeline = world.Make(spec);
    auto forward = pipeline->Forward(Ask(Input(x), true));
    ASSERT_TRUE(forward.ok()) << forward.status();
    auto backward = pipeline->Backward(forward->graph, {{"output", gradient}}, false);
    ASSERT_TRUE(backward.ok()) << backward.status();
    auto stepped = pipeline->OptimizerStep({});

    PlainReference plain = PlainOf(spec);
    const at::Tensor leaf = x.clone().requires_grad_(true);
    const std::vector<Batch> outputs = plain.Forward({Value(leaf)}, 4);
    for (int m = 0; m < 4; ++m) outputs[m].TensorAt(0).backward(gradient.narrow(0, 2 * m, 2));
    EXPECT_EQ(*stepped->gradient_norm, plain.Step().gradient_norm) << ModeName(mode);
    EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode);
    EXPECT_TRUE(at::equal(*backward->input_gradients.at(0).value.tensor(), leaf.grad())) << ModeName(mode);
  }
}

TEST(Pipe, BatchNormNormalisesEachMicroBatchAndDropoutIsKeyed) {
  PipeWorld world;
  for (const bool deferred : {false, true}) {
    for (CheckpointMode mode : kModes) {
      PipelineSpec spec = Pipe({Linear(2, 4), Built("batch_norm", {{"features", int64_t{4}}}, "norm"),
                                Built("dropout", {{"p", 0.5}}), Linear(4, 2)},
                               {2, 2}, 4, mode);
      spec.model.deferred_batch_norm = deferred;
      spec.optimizer.options = {{"learning_rate", 0.125}};
      auto pipeline = world.Make(spec);
      PlainReference plain = PlainOf(spec);
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = Range({7 + step, 2}).add(step);
        const at::Tensor target = at::ones({7 + step, 2});
        auto outcome = pipeline->TrainStep(Contribution(x, target), {});
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        EXPECT_EQ(*outcome->loss, plain.TrainStep({Value(x)}, target, 4).loss);
      }
      EXPECT_TRUE(SameState(*pipeline, plain)) << ModeName(mode) << " " << deferred;
    }
  }
}

TEST(Pipe, ARunSaysHowMuchOfItsTimeStagesWereIdle) {
  PipeWorld world;  // serial: while one stage works the other waits, so about half is idle
  auto pipeline = world.Make(Pipe({Linear(64, 64), Linear(64, 64)}, {1, 1}, 4));
  auto outcome = pipeline->TrainStep(Contribution(Range({64, 64}), at::ones({64, 64})), {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_GT(outcome->measured_bubble, 0);
  EXPECT_LT(outcome->measured_bubble, 1);
  EXPECT_GT(outcome->seconds, 0);
}

}  // namespace
}  // namespace penstock::testing
