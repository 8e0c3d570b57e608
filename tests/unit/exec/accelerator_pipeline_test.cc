// A pipeline on accelerators that compute as the CPU does (stand_in_device.h): placement, copies between devices, and
// the order of streams. Whatever mixes tensors of two devices, or reads a device's memory from the host, fails here.

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/synchronization/notification.h"
#include "engine/device/accelerators.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/layer_registry.h"
#include "tests/support/plain_reference.h"
#include "tests/support/stand_in_device.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using testing::PlainReference;

constexpr int64_t kWidth = 6;
constexpr int kMicroBatches = 4;

const LayerSpec kLinear{"linear", "", {{"in", kWidth}, {"out", kWidth}}};

std::vector<Device> Devices() {
  static const bool opened = [] {
    OpenAccelerators({}, {.driver = "libm.so.6", .module = FAKE_MODULE});
    return true;
  }();
  (void)opened;
  Device first{.name = "cuda:0", .cores = {0}};
  first.kind = DeviceKind::kCuda;
  Device second = first;
  second.name = "cuda:1";
  second.index = 1;
  return {first, second, {.name = "cpu:0", .cores = {0}}};
}

PipelineSpec Spec(CheckpointMode mode) {
  const OptionMap skip = {{"name", std::string("skip")}};
  PipelineSpec spec;
  spec.model.layers = {kLinear,
                       {"stash", "", skip},
                       {"dropout", "", {{"p", 0.25}}},
                       kLinear,
                       {"batch_norm", "", {{"features", kWidth}}},
                       {"pop_add", "", skip},
                       kLinear};
  spec.cut.balance = {2, 3, 2};
  spec.devices = {"cuda:0", "cpu:0", "cuda:1"};
  spec.schedule = {"1f1b", kMicroBatches, mode};
  spec.optimizer = {.name = "adamw"};
  spec.loss.name = "mean_squared_error";
  spec.seed = 11;
  return spec;
}

// Some linear layers, the first and the last with one weight.
PipelineSpec TiedSpec(std::vector<int> balance, std::vector<std::string> devices) {
  PipelineSpec spec = Spec(CheckpointMode::kExceptLast);
  spec.model.layers = {kLinear, {"gelu", "", {}}, kLinear};
  spec.model.ties = {{.parameters = {"layer0.weight", "layer2.weight"}}};
  spec.cut.balance = std::move(balance);
  spec.devices = std::move(devices);
  return spec;
}

PipelineSpec ModelSpecOf(const std::string& name, OptionMap options, const std::string& loss) {
  PipelineSpec spec = Spec(CheckpointMode::kExceptLast);
  spec.model = {.name = name, .options = std::move(options)};
  spec.loss.name = loss;
  spec.devices = {"cuda:0", "cuda:1"};
  const int layers = static_cast<int>(ExpandModel(spec.model)->size());
  spec.cut.balance = {layers / 2, layers - layers / 2};
  return spec;
}

PipelineSpec Gpt(double dropout) {
  const auto n = [](int64_t value) { return value; };
  return ModelSpecOf(
      "gpt",
      {{"blocks", n(2)}, {"width", n(8)}, {"heads", n(2)}, {"sequence", n(4)}, {"vocab", n(5)}, {"dropout", dropout}},
      "cross_entropy");
}

PipelineSpec Unet() {
  const auto n = [](int64_t value) { return value; };
  return ModelSpecOf(
      "unet", {{"depth", n(2)}, {"convs", n(1)}, {"channels", n(4)}, {"out", n(2)}, {"dropout", 0.2}, {"image", n(8)}},
      "mean_squared_error");
}

// Gives its input and, inside of containers, the tanh of it, to the next layer and as a skip.
class GivesContainers : public Layer {
 public:
  GivesContainers() { DeclareStash("aside"); }
  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor aux = inputs.TensorAt(0).tanh();
    context.skips->Stash("aside", Value::List({Value(aux)}));
    return Batch::Tuple({inputs[0], Value::Dict({{"aux", Value(aux)}})});
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", DataType::kFp32, {-1, kWidth}}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"", DataType::kUnspecified, {}, true}}; }
};

class PassesOn : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override { return inputs; }
  std::vector<TensorSignature> InputSignature() const override { return {{"", DataType::kUnspecified, {}, true}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"", DataType::kUnspecified, {}, true}}; }
};

// Adds them up.
class TakesContainers : public Layer {
 public:
  TakesContainers() { DeclarePop("aside"); }
  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor& aux = *inputs[1].dict()->at(0).second.tensor();
    return {inputs.TensorAt(0).add(aux).add(*context.skips->Pop("aside").list()->at(0).tensor())};
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"", DataType::kUnspecified, {}, true}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", DataType::kFp32, {-1, kWidth}}}; }
};

template <typename Kind>
absl::StatusOr<std::unique_ptr<Layer>> MakeKind(const LayerRequest&) {
  return std::make_unique<Kind>();
}

// Over three devices.
PipelineSpec SpecWithContainers() {
  static const bool registered = RegisterLayerKind("test_gives", MakeKind<GivesContainers>).ok() &&
                                 RegisterLayerKind("test_passes_on", MakeKind<PassesOn>).ok() &&
                                 RegisterLayerKind("test_takes", MakeKind<TakesContainers>).ok();
  EXPECT_TRUE(registered);
  PipelineSpec spec = Spec(CheckpointMode::kExceptLast);
  spec.model.layers = {kLinear, {"test_gives", "", {}}, {"test_passes_on", "", {}}, {"test_takes", "", {}}, kLinear};
  spec.cut.balance = {2, 1, 2};
  spec.devices = {"cuda:0", "cpu:0", "cuda:1"};
  return spec;
}

// A mini-batch that the model takes.
struct Rows {
  at::Tensor input;
  at::Tensor target;
};
Rows NewRows() { return {at::randn({8, kWidth}), at::randn({8, kWidth})}; }
Rows NewTokens(int64_t rows) { return {at::randint(5, {rows, 4}, at::kLong), at::randint(5, {rows, 4}, at::kLong)}; }
Rows NewImages() { return {at::randn({8, 3, 8, 8}), at::randn({8, 2, 8, 8})}; }

ContributionRequest RequestOf(const Pipeline& pipeline, const Rows& rows) {
  ContributionRequest request;
  request.inputs = NamedTensors{{pipeline.signature().inputs[0].name, rows.input}};
  request.target = rows.target;
  return request;
}

ContributionRequest WithOutputs(const Pipeline& pipeline, const Rows& rows) {
  ContributionRequest request = RequestOf(pipeline, rows);
  request.outputs = {pipeline.signature().outputs[0].name};
  return request;
}

void ExpectEqual(const NamedTensors& got, const NamedTensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].name, want[i].name);
    EXPECT_TRUE(got[i].tensor.is_cpu());
    EXPECT_TRUE(at::equal(got[i].tensor, want[i].tensor)) << got[i].name;
  }
}

class AcceleratorPipeline : public ::testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    at::set_num_threads(1);
  }

  static PlainReference Plain(const PipelineSpec& spec) {
    return PlainReference({.model = spec.model, .loss = spec.loss, .optimizer = spec.optimizer, .seed = spec.seed});
  }

  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec, DevicePool::Mode mode = DevicePool::Mode::kSerial) {
    pools_.push_back(std::make_unique<DevicePool>(Devices(), mode));
    auto pipeline = Pipeline::Create(spec, {.devices = pools_.back().get(), .profile = {.rows = 2, .repeats = 1}});
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }

  // Three steps have the bits of the plain loop on the CPU, and leave its state.
  void ExpectStepsOfThePlainLoop(const PipelineSpec& spec, const std::function<Rows()>& new_rows,
                                 DevicePool::Mode mode = DevicePool::Mode::kSerial) {
    auto pipeline = Make(spec, mode);
    ASSERT_NE(pipeline, nullptr);
    PlainReference plain = Plain(spec);
    for (int step = 0; step < 3; ++step) {
      const Rows rows = new_rows();
      const auto outcome = pipeline->TrainStep(RequestOf(*pipeline, rows), {});
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      const auto want = plain.TrainStep({Value(rows.input)}, rows.target, kMicroBatches);
      EXPECT_EQ(*outcome->loss, want.loss);
      EXPECT_EQ(*outcome->gradient_norm, want.gradient_norm);
    }
    ExpectEqual(pipeline->ExportState(false).value(), plain.SavedTensors());
  }

  std::vector<std::unique_ptr<DevicePool>> pools_;
};

TEST_F(AcceleratorPipeline, StagesOnThreeDevicesEqualThePlainLoop) {
  for (const DevicePool::Mode pool_mode : {DevicePool::Mode::kSerial, DevicePool::Mode::kThreads}) {
    for (const CheckpointMode mode : {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever}) {
      ExpectStepsOfThePlainLoop(Spec(mode), NewRows, pool_mode);
    }
  }
}

TEST_F(AcceleratorPipeline, TwoUsesOfAWeightOnOneStageStayOne) {
  ExpectStepsOfThePlainLoop(TiedSpec({3}, {"cuda:1"}), NewRows);
}

TEST_F(AcceleratorPipeline, TiedGradientsOfTwoDevicesAreAddedOnEach) {
  ExpectStepsOfThePlainLoop(TiedSpec({1, 2}, {"cuda:0", "cuda:1"}), NewRows);
  ExpectStepsOfThePlainLoop(TiedSpec({1, 2}, {"cuda:0", "cpu:0"}), NewRows);
  ExpectStepsOfThePlainLoop(TiedSpec({1, 2}, {"cpu:0", "cuda:1"}), NewRows, DevicePool::Mode::kThreads);
}

TEST_F(AcceleratorPipeline, SkipsOfAUnetGoFromDeviceToDevice) {
  ExpectStepsOfThePlainLoop(Unet(), NewImages);
  ExpectStepsOfThePlainLoop(Unet(), NewImages, DevicePool::Mode::kThreads);
}

TEST_F(AcceleratorPipeline, TensorsInsideOfContainersGoFromDeviceToDevice) {
  ExpectStepsOfThePlainLoop(SpecWithContainers(), NewRows);
  ExpectStepsOfThePlainLoop(SpecWithContainers(), NewRows, DevicePool::Mode::kThreads);
  PipelineSpec halves = SpecWithContainers();
  halves.schedule = {"zb-h1", kMicroBatches, CheckpointMode::kNever};
  ExpectStepsOfThePlainLoop(halves, NewRows);
  PipelineSpec measured = SpecWithContainers();
  measured.cut = {};
  ExpectStepsOfThePlainLoop(measured, NewRows);
}

TEST_F(AcceleratorPipeline, BatchNormsOfAResnetStandWhereTheirStageStands) {
  const auto n = [](int64_t value) { return value; };
  const PipelineSpec resnet = ModelSpecOf("resnet",
                                          {{"depth", n(50)},
                                           {"blocks1", n(1)},
                                           {"blocks2", n(1)},
                                           {"blocks3", n(1)},
                                           {"blocks4", n(1)},
                                           {"width", n(4)},
                                           {"classes", n(3)},
                                           {"image", n(32)}},
                                          "cross_entropy");
  ExpectStepsOfThePlainLoop(resnet, [] { return Rows{at::randn({8, 3, 32, 32}), at::randint(3, {8}, at::kLong)}; });
}

TEST_F(AcceleratorPipeline, ADividedBackwardEqualsThePlainLoop) {
  PipelineSpec spec = TiedSpec({1, 2}, {"cuda:0", "cuda:1"});
  spec.schedule = {"zb-h1", kMicroBatches, CheckpointMode::kNever};
  ExpectStepsOfThePlainLoop(spec, NewRows);
}

TEST_F(AcceleratorPipeline, ClipsByTheNormOfAllDevices) {
  PipelineSpec spec = TiedSpec({1, 2}, {"cuda:0", "cuda:1"});
  spec.optimizer = {.name = "sgd", .options = {{"momentum", 0.9}}, .clip_norm = 1e-3};
  ExpectStepsOfThePlainLoop(spec, NewRows);
}

TEST_F(AcceleratorPipeline, ContributionsAddUpAndAStepFollows) {
  const PipelineSpec spec = Spec(CheckpointMode::kExceptLast);
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  PlainReference plain = Plain(spec);
  for (int call = 0; call < 2; ++call) {
    const Rows rows = NewRows();
    ContributionRequest request = RequestOf(*pipeline, rows);
    request.total_rows = 16;
    ASSERT_TRUE(pipeline->ForwardBackward(std::move(request)).ok());
    plain.Contribute({Value(rows.input)}, rows.target, kMicroBatches, 16 * kWidth);
  }
  const auto outcome = pipeline->OptimizerStep({});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(*outcome->gradient_norm, plain.Step().gradient_norm);
  ExpectEqual(pipeline->ExportState(false).value(), plain.SavedTensors());
}

TEST_F(AcceleratorPipeline, AForwardAndItsBackwardGiveHostTensors) {
  const PipelineSpec spec = Spec(CheckpointMode::kExceptLast);
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  PlainReference plain = Plain(spec);
  const Rows rows = NewRows();
  ForwardRequest request;
  request.inputs = NamedTensors{{"input", rows.input}};
  request.input_gradients = true;
  auto forward = pipeline->Forward(std::move(request));
  ASSERT_TRUE(forward.ok()) << forward.status();
  const at::Tensor leaf = rows.input.detach().clone().requires_grad_(true);
  const std::vector<Batch> want = plain.Forward({Value(leaf)}, kMicroBatches);
  const at::Tensor& outputs = *forward->outputs[0].value.tensor();
  for (int m = 0; m < kMicroBatches; ++m) {
    EXPECT_TRUE(at::equal(outputs.narrow(0, 2 * m, 2), want[m].TensorAt(0)));
    want[m].TensorAt(0).backward(at::ones({2, kWidth}));
  }
  const auto backward =
      pipeline->Backward(forward->graph, {{forward->outputs[0].name, at::ones({8, kWidth})}}, /*retain_graph=*/false);
  ASSERT_TRUE(backward.ok()) << backward.status();
  EXPECT_TRUE(at::equal(*backward->input_gradients[0].value.tensor(), leaf.grad()));
}

TEST_F(AcceleratorPipeline, InfersWithTheWeightsOfTheLastStep) {
  const PipelineSpec spec = Unet();
  auto pipeline = Make(spec, DevicePool::Mode::kThreads);
  ASSERT_NE(pipeline, nullptr);
  PlainReference plain = Plain(spec);
  const Rows rows = NewImages();
  ASSERT_TRUE(pipeline->TrainStep(RequestOf(*pipeline, rows), {}).ok());
  plain.TrainStep({Value(rows.input)}, rows.target, kMicroBatches);
  absl::Notification done;
  absl::StatusOr<ForwardOutcome> outcome;
  ForwardRequest request;
  request.inputs = NamedTensors{{pipeline->signature().inputs[0].name, rows.input}};
  pipeline->InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> result) {
    outcome = std::move(result);
    done.Notify();
  });
  done.WaitForNotification();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(at::equal(*outcome->outputs[0].value.tensor(), plain.Infer({Value(rows.input)}, kMicroBatches).at(0)));
}

absl::StatusOr<NamedValues> Infer(Pipeline& pipeline, const at::Tensor& input, std::optional<int> micro_batches,
                                  bool stay) {
  absl::Notification done;
  absl::StatusOr<NamedValues> outputs;
  ForwardRequest request;
  request.inputs = NamedTensors{{pipeline.signature().inputs[0].name, input}};
  request.micro_batches = micro_batches;
  request.outputs_stay = stay;
  pipeline.InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> result) {
    outputs = result.ok() ? absl::StatusOr<NamedValues>(std::move(result->outputs)) : result.status();
    done.Notify();
  });
  done.WaitForNotification();
  return outputs;
}

TEST_F(AcceleratorPipeline, OutputsThatStayGoOnAsInputsWithoutTheHost) {
  for (const std::vector<std::string>& devices :
       std::vector<std::vector<std::string>>{{"cuda:0"}, {"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0", "cuda:1"}}) {
    for (const std::optional<int> micro_batches : {std::optional<int>(1), std::optional<int>(kMicroBatches)}) {
      PipelineSpec spec = TiedSpec(std::vector<int>(devices.size(), 1), devices);
      spec.model.ties.clear();
      spec.cut.balance.back() += 3 - static_cast<int>(devices.size());
      auto pipeline = Make(spec, DevicePool::Mode::kThreads);
      ASSERT_NE(pipeline, nullptr);
      PlainReference plain = Plain(spec);
      const at::Tensor first = NewRows().input;
      at::Tensor want = first;
      absl::StatusOr<NamedValues> outputs = Infer(*pipeline, first, micro_batches, /*stay=*/true);
      const int64_t crossed = testing::HostCopyBytes();
      for (int call = 1; call < 100; ++call) {
        ASSERT_TRUE(outputs.ok()) << outputs.status();
        outputs = Infer(*pipeline, *outputs->at(0).value.tensor(), micro_batches, /*stay=*/true);
      }
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      EXPECT_EQ(testing::HostCopyBytes(), crossed);
      const at::Tensor& last = *outputs->at(0).value.tensor();
      EXPECT_FALSE(last.is_cpu());
      for (int call = 0; call < 100; ++call) want = plain.Infer({Value(want)}, micro_batches.value()).at(0);
      EXPECT_TRUE(at::equal(last.cpu(), want));
      outputs = Infer(*pipeline, first, micro_batches, /*stay=*/false);
      EXPECT_TRUE(outputs->at(0).value.tensor()->is_cpu());
    }
  }
}

TEST_F(AcceleratorPipeline, OutputsThatStayAreWhatTheyWereAfterLaterSteps) {
  PipelineSpec spec = Spec(CheckpointMode::kExceptLast);
  spec.model.layers = {kLinear, {"gelu", "", {}}};
  spec.cut.balance = {1, 1};
  spec.devices = {"cuda:0", "cuda:1"};
  auto pipeline = Make(spec, DevicePool::Mode::kThreads);
  ASSERT_NE(pipeline, nullptr);
  const Rows rows = NewRows();
  const auto before = Infer(*pipeline, rows.input, 1, /*stay=*/true);
  ASSERT_TRUE(before.ok()) << before.status();
  const at::Tensor want = before->at(0).value.tensor()->cpu().clone();
  ForwardRequest request;
  request.inputs = NamedTensors{{"input", rows.input}};
  request.outputs_stay = true;
  auto forward = pipeline->Forward(std::move(request));
  ASSERT_TRUE(forward.ok()) << forward.status();
  const at::Tensor& kept = *forward->outputs[0].value.tensor();
  EXPECT_FALSE(kept.is_cpu());
  const at::Tensor kept_then = kept.cpu().clone();
  const auto backward = pipeline->Backward(
      forward->graph, {{forward->outputs[0].name, at::ones({8, kWidth}).to(kept.device())}}, /*retain_graph=*/false);
  ASSERT_TRUE(backward.ok()) << backward.status();
  ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
  EXPECT_TRUE(at::equal(before->at(0).value.tensor()->cpu(), want));
  EXPECT_TRUE(at::equal(kept.cpu(), kept_then));
}

TEST_F(AcceleratorPipeline, AMiniBatchMayStandOnAnyDevice) {
  const PipelineSpec spec = Spec(CheckpointMode::kExceptLast);
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  PlainReference plain = Plain(spec);
  for (const int index : {1, 0}) {
    const Rows rows = NewRows();
    const auto outcome = pipeline->TrainStep(
        RequestOf(*pipeline, {rows.input.to(c10::Device(c10::DeviceType::PrivateUse1, index)), rows.target}), {});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(*outcome->loss, plain.TrainStep({Value(rows.input)}, rows.target, kMicroBatches).loss);
  }
  ExpectEqual(pipeline->ExportState(false).value(), plain.SavedTensors());
}

TEST_F(AcceleratorPipeline, RestoresEveryCopyOfATiedWeight) {
  const PipelineSpec spec = TiedSpec({1, 2}, {"cuda:0", "cuda:1"});
  auto trained = Make(spec);
  auto restored = Make(spec);
  ASSERT_TRUE(trained != nullptr && restored != nullptr);
  ASSERT_TRUE(trained->TrainStep(RequestOf(*trained, NewRows()), {}).ok());
  const absl::Status imported = restored->ImportState(trained->ExportState(true).value(), trained->step());
  ASSERT_TRUE(imported.ok()) << imported;
  const Rows rows = NewRows();
  for (Pipeline* one : {trained.get(), restored.get()}) ASSERT_TRUE(one->TrainStep(RequestOf(*one, rows), {}).ok());
  ExpectEqual(restored->ExportState(true).value(), trained->ExportState(true).value());
}

// The loss, the norms, outputs, the check of labels and tokens. Masks of dropout are a CPU's here, and copied; a GPU draws them
// (CudaModuleStandIn.MasksAreDrawnOnTheDeviceByTheKeyOfThePass).
TEST_F(AcceleratorPipeline, NoOperatorOfAStepMakesTheHostWait) {
  auto pipeline = Make(Gpt(/*dropout=*/0));
  ASSERT_NE(pipeline, nullptr);
  const int64_t before = testing::HostWaits();
  const auto outcome = pipeline->TrainStep(WithOutputs(*pipeline, NewTokens(8)), {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(testing::HostWaits(), before);
  EXPECT_TRUE(outcome->outputs[0].value.tensor()->is_cpu());
}

// Neither does a step of other layers, losses and optimizers, once what never changes stands on its device.
TEST_F(AcceleratorPipeline, NoOperatorOfALaterStepMakesTheHostWait) {
  std::vector<std::pair<std::string, PipelineSpec>> specs;
  const auto add = [&](const std::string& name, const std::function<void(PipelineSpec&)>& change) {
    PipelineSpec spec = Spec(CheckpointMode::kExceptLast);
    spec.model.layers = {kLinear, {"batch_norm", "", {{"features", kWidth}}}, {"gelu", "", {}}, kLinear};
    spec.cut.balance = {2, 2};
    spec.devices = {"cuda:0", "cuda:1"};
    change(spec);
    specs.emplace_back(name, spec);
  };
  add("batch norm", [](PipelineSpec&) {});
  add("batch norm that averages", [](PipelineSpec& spec) { spec.model.layers[1].options["cumulative"] = true; });
  add("deferred batch norm", [](PipelineSpec& spec) { spec.model.deferred_batch_norm = true; });
  add("logits", [](PipelineSpec& spec) {
    spec.loss = {.name = "binary_cross_entropy", .options = {{"pos_weight", 2.0}}};
  });
  for (const char* optimizer : {"sgd", "adam", "adagrad", "rmsprop", "lion"}) {
    add(optimizer, [&](PipelineSpec& spec) { spec.optimizer = {.name = optimizer, .options = {}, .clip_norm = 1e-3}; });
  }
  PipelineSpec weighing = Gpt(/*dropout=*/0);
  weighing.loss.class_weights = {1, 2, 3, 4, 5};
  specs.emplace_back("class weights", weighing);
  for (const auto& [name, spec] : specs) {
    SCOPED_TRACE(name);
    auto pipeline = Make(spec);
    ASSERT_NE(pipeline, nullptr);
    int64_t before = 0;
    for (int step = 0; step < 2; ++step) {
      before = testing::HostWaits();
      Rows rows = name == "class weights" ? NewTokens(8) : NewRows();
      if (name == "logits") rows.target = rows.target.sigmoid();
      ContributionRequest request = WithOutputs(*pipeline, rows);
      if (step == 1 && name == "class weights") request.weights = at::rand({8});
      const auto outcome = pipeline->TrainStep(std::move(request), {});
      ASSERT_TRUE(outcome.ok()) << outcome.status();
    }
    EXPECT_EQ(testing::HostWaits(), before);
  }
}

TEST_F(AcceleratorPipeline, NoOperatorOfAForwardABackwardAndAnInferenceMakesTheHostWait) {
  PipelineSpec spec = TiedSpec({1, 2}, {"cuda:0", "cuda:1"});
  spec.model.ties.clear();
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  const int64_t before = testing::HostWaits();
  ForwardRequest request;
  request.inputs = NamedTensors{{"input", NewRows().input}};
  request.input_gradients = true;
  auto forward = pipeline->Forward(std::move(request));
  ASSERT_TRUE(forward.ok()) << forward.status();
  const auto backward =
      pipeline->Backward(forward->graph, {{forward->outputs[0].name, at::ones({8, kWidth})}}, /*retain_graph=*/false);
  ASSERT_TRUE(backward.ok()) << backward.status();
  absl::Notification done;
  ForwardRequest inference;
  inference.inputs = NamedTensors{{"input", NewRows().input}};
  pipeline->InferAsync(std::move(inference), [&](const absl::StatusOr<ForwardOutcome>& outcome) {
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    done.Notify();
  });
  pools_.back()->Wait(done);
  EXPECT_EQ(testing::HostWaits(), before);
}

// However many micro-batches: only for the norms, without which nobody can clip, and only as nothing else is to do here (with
// threads, AcceleratorTime.NoThreadOfADeviceWaitsInAStep).
TEST_F(AcceleratorPipeline, TheHostWaitsForNoActionOfAStep) {
  std::vector<int64_t> waits;
  for (const int micro_batches : {2, 4, 8}) {
    PipelineSpec spec = Gpt(/*dropout=*/0.2);
    spec.schedule.micro_batches = micro_batches;
    auto pipeline = Make(spec);
    ASSERT_NE(pipeline, nullptr);
    const auto so_far = [] {
      int64_t sum = 0;
      for (const Device& device : {Devices()[0], Devices()[1]}) {
        sum += static_cast<testing::StandInStreams&>(StreamsOf(device)).host_waits();
      }
      return sum;
    };
    const int64_t before = so_far();
    const auto outcome = pipeline->TrainStep(WithOutputs(*pipeline, NewTokens(8)), {});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    waits.push_back(so_far() - before);
  }
  EXPECT_THAT(waits, ::testing::Each(waits[0]));
  EXPECT_GE(waits[0], 1) << "so that the count can grow";
  EXPECT_LE(waits[0], 2);
}

// Whoever has them on the host looks at them there; behind a cut, the layer itself does.
TEST_F(AcceleratorPipeline, TokensBeyondTheVocabularyAreRefusedWhereverTheyStand) {
  const auto n = [](int64_t value) { return value; };
  PipelineSpec spec =
      ModelSpecOf("gpt", {{"blocks", n(2)}, {"width", n(8)}, {"heads", n(2)}, {"sequence", n(4)}, {"vocab", n(5)}},
                  "cross_entropy");
  const LayerSpec first = ExpandModel(spec.model)->front();
  for (const bool nested : {false, true}) {
    for (const bool behind : {false, true}) {
      PipelineSpec one = spec;
      one.model.name.clear();
      one.model.layers = *ExpandModel(spec.model);
      if (nested) {
        one.model.layers[0] = {"sequential", "nested", {}};
        one.model.layers[0].layers = {first};
        if (behind) one.model.layers[0].layers.insert(one.model.layers[0].layers.begin(), {"identity", "before", {}});
      } else if (behind) {
        one.model.layers.insert(one.model.layers.begin(), {"identity", "before", {}});
        one.cut.balance = {1, 4};
      }
      one.model.options.clear();
      auto pipeline = Make(one);
      ASSERT_NE(pipeline, nullptr);
      const Rows rows{at::full({8, 4}, 5, at::kLong), at::randint(5, {8, 4}, at::kLong)};
      const absl::Status status = pipeline->TrainStep(RequestOf(*pipeline, rows), {}).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("must lie in [0, 4], got 5")) << nested << behind;
    }
  }
}

TEST_F(AcceleratorPipeline, ChoosesItsOwnCutByMeasuringOnTheDevices) {
  PipelineSpec spec = Unet();
  spec.cut = {};
  ExpectStepsOfThePlainLoop(spec, NewImages, DevicePool::Mode::kThreads);
}

TEST_F(AcceleratorPipeline, ALayerStandsWhereItsDeviceSays) {
  PipelineSpec spec = Spec(CheckpointMode::kNever);
  spec.cut = {};
  spec.devices = {};
  spec.model.layers[0].device = "cuda:1";
  spec.model.layers[3].device = "cuda";  // cuda:0
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  ASSERT_EQ(pipeline->plan().stages.size(), 2u);
  EXPECT_EQ(pipeline->plan().stages[0].device, "cuda:1");
  EXPECT_EQ(pipeline->plan().stages[0].layers.size(), 3u) << "layers without a device join the stage before";
  EXPECT_EQ(pipeline->plan().stages[1].device, "cuda:0");
}

TEST_F(AcceleratorPipeline, ALayerOfLayersStandsOnOneDevice) {
  const LayerSpec linear{"linear", "", {{"in", int64_t{2}}, {"out", int64_t{2}}}};
  LayerSpec nested{"sequential", "nested", {}};
  nested.device = "cuda:1";
  nested.layers = {linear, linear};
  PipelineSpec spec;
  spec.model.layers = {nested};
  spec.optimizer.name = "sgd";
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  ASSERT_EQ(pipeline->plan().stages.size(), 1u);
  EXPECT_EQ(pipeline->plan().stages[0].device, "cuda:1");
  ForwardRequest request;
  request.inputs = NamedTensors{{pipeline->signature().inputs[0].name, at::randn({10, 2})}};
  const auto outcome = pipeline->Forward(std::move(request));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->outputs[0].value.tensor()->sizes(), at::IntArrayRef({10, 2}));
}

// The stand-ins themselves: what passes on them would pass on hardware.
TEST(StandInDevice, CountsWhatMakesTheHostWait) {
  const Device device = Devices()[0];
  const at::Tensor here = at::ones({3}, TorchDevice(device));
  const at::Tensor flags = here.gt(0);
  const at::Tensor index = flags.to(at::kLong);
  const auto waits = [](const std::function<void()>& body) {
    const int64_t before = testing::HostWaits();
    body();
    return testing::HostWaits() - before;
  };
  EXPECT_EQ(waits([&] { here.sum().item(); }), 1);
  EXPECT_EQ(waits([&] { here.masked_select(flags); }), 1);
  EXPECT_EQ(waits([&] { here.nonzero(); }), 1);
  EXPECT_GE(waits([&] { here.index({flags}); }), 1);
  EXPECT_EQ(waits([&] { here.index({index}); }), 0);
  EXPECT_EQ(waits([&] { here.clone().index_put_({flags}, here); }), 1);
  EXPECT_EQ(waits([&] { here.clone().index_put_({index}, here); }), 0);
  EXPECT_EQ(waits([&] { (void)at::equal(here, here); }), 1);
  EXPECT_EQ(waits([&] { here.add(here).mul_(2).masked_fill(flags, 1); }), 0);
  const at::Tensor pinned = StreamsOf(device).NewHostTensor(at::ones({3}));
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(at::ones({3}).is_pinned());
  EXPECT_EQ(waits([&] { here.copy_(pinned, /*non_blocking=*/true); }), 0);
  EXPECT_EQ(waits([&] { pinned.narrow(0, 1, 2).copy_(here.narrow(0, 0, 2), /*non_blocking=*/true); }), 0);
  EXPECT_EQ(waits([&] { here.copy_(pinned); }), 1);
  EXPECT_EQ(waits([&] { here.copy_(at::ones({3}), /*non_blocking=*/true); }), 1);
  EXPECT_EQ(waits([&] { at::ones({3}).copy_(here, /*non_blocking=*/true); }), 1);
}

TEST(StandInDevice, RefusesTensorsOfTwoDevices) {
  const at::Tensor here = at::ones({3}, TorchDevice(Devices()[0]));
  const at::Tensor there = at::ones({3}, TorchDevice(Devices()[1]));
  EXPECT_THAT([&] { here.add(there); }, ::testing::ThrowsMessage<c10::Error>(HasSubstr("on the same device")));
  EXPECT_THAT([&] { here.add(at::ones({3})); }, ::testing::ThrowsMessage<c10::Error>(HasSubstr("on the same device")));
  EXPECT_TRUE(at::equal(here.add(there.to(here.device())).cpu(), at::ones({3}).mul(2)));
  EXPECT_TRUE(at::equal(here.add(at::ones({})).cpu(), at::ones({3}).mul(2))) << "scalars of the host are welcome";
}

TEST(StandInDeviceDeathTest, KeepsTheHostOutOfItsMemory) {
  const at::Tensor here = at::ones({3}, TorchDevice(Devices()[0]));
  EXPECT_DEATH(*static_cast<volatile float*>(here.mutable_data_ptr<float>()) = 1, "");
}

}  // namespace
}  // namespace penstock
