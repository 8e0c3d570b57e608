// Pipelines whose stages stand on a GPU, beside the plain loop on the same GPU: bit for bit, however the model is cut.

#include <ATen/Context.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/device/deterministic.h"
#include "engine/device/torch_status.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/layer_registry.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/support/plain_reference.h"

namespace penstock {
namespace {

using testing::PlainReference;

constexpr int kMicroBatches = 4;
constexpr int64_t kRows = 8;
constexpr int64_t kVocabulary = 61;
constexpr int64_t kSequence = 32;

int64_t N(int64_t value) { return value; }

// A mini-batch that a model takes.
struct Rows {
  at::Tensor input;
  at::Tensor target;
};

struct Model {
  ModelSpec model;
  std::string loss;
  std::function<Rows()> rows;
};

Model Gpt(double dropout = 0.1) {
  return {{"gpt",
           {{"blocks", N(4)},
            {"width", N(64)},
            {"heads", N(4)},
            {"sequence", kSequence},
            {"vocab", kVocabulary},
            {"dropout", dropout}},
           {}},
          "cross_entropy",
          [] {
            return Rows{at::randint(kVocabulary, {kRows, kSequence}, at::kLong),
                        at::randint(kVocabulary, {kRows, kSequence}, at::kLong)};
          }};
}

Model Mlp() {
  return {{"mlp", {{"layers", N(4)}, {"width", N(32)}, {"dropout", 0.1}}, {}}, "mean_squared_error", [] {
            return Rows{at::randn({kRows, 32}), at::randn({kRows, 32})};
          }};
}

Model TiedGpt(double dropout = 0.1) {
  Model model = Gpt(dropout);
  const auto layers = *ExpandModel(model.model);
  model.model.ties = {{.parameters = {layers.front().name + ".token.weight", layers.back().name + ".weight"}}};
  return model;
}

Model Resnet() {
  return {{"resnet",
           {{"depth", N(50)},
            {"blocks1", N(1)},
            {"blocks2", N(1)},
            {"blocks3", N(1)},
            {"blocks4", N(1)},
            {"width", N(8)},
            {"classes", N(5)},
            {"image", N(32)}},
           {}},
          "cross_entropy",
          [] {
            return Rows{at::randn({kRows, 3, 32, 32}), at::randint(5, {kRows}, at::kLong)};
          }};
}

Model Unet(double dropout = 0.2) {
  return {
      {"unet",
       {{"depth", N(2)}, {"convs", N(1)}, {"channels", N(8)}, {"out", N(2)}, {"dropout", dropout}, {"image", N(16)}},
       {}},
      "mean_squared_error",
      [] {
        return Rows{at::randn({kRows, 3, 16, 16}), at::randn({kRows, 2, 16, 16})};
      }};
}

struct Cut {
  std::vector<std::string> devices = {"cuda:0"};  // of each stage
  std::string kind = "1f1b";
  CheckpointMode checkpoint = CheckpointMode::kExceptLast;
  std::string optimizer = "adamw";
};

PipelineSpec SpecOf(const Model& model, const Cut& cut) {
  PipelineSpec spec;
  spec.model = model.model;
  spec.loss.name = model.loss;
  const int layers = static_cast<int>(ExpandModel(spec.model)->size());
  const int stages = static_cast<int>(cut.devices.size());
  for (int s = 0; s < stages; ++s) spec.cut.balance.push_back(layers * (s + 1) / stages - layers * s / stages);
  spec.devices = cut.devices;
  spec.schedule = {cut.kind, kMicroBatches, cut.checkpoint};
  spec.optimizer = {.name = cut.optimizer, .options = {{"learning_rate", 0.01}}, .clip_norm = 0.5};
  spec.seed = 11;
  return spec;
}

PlainReference Plain(const PipelineSpec& spec, c10::Device device) {
  return PlainReference(
      {.model = spec.model, .loss = spec.loss, .optimizer = spec.optimizer, .seed = spec.seed, .device = device});
}

const std::vector<Cut> kCuts = {
    {},
    {{"cuda:0", "cuda:0"}},
    {{"cuda:0", "cuda:0", "cuda:0", "cuda:0"}},
    {{"cuda:0", "cuda:0", "cuda:0", "cuda:0"}, "gpipe", CheckpointMode::kAlways},
    {{"cuda:0", "cuda:0"}, "zb-h1", CheckpointMode::kNever},
};

class PipelineGpuTest : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    at::manual_seed(7);
    UseDeterministicKernels();
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
    at::globalContext().setDeterministicCuDNN(false);
  }

  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec, Pipeline::Options options = {}) {
    Device host{.name = "cpu:0", .cores = {0}};
    std::vector<Device> devices = {Cuda(0), host};
    for (int i = 1; i < FoundCuda().count; ++i) devices.push_back(Cuda(i));
    for (Device& device : devices) device.cores = {0};
    pools_.push_back(std::make_unique<DevicePool>(devices, DevicePool::Mode::kThreads));
    options.devices = pools_.back().get();
    options.profile.rows = 2;
    options.profile.repeats = 1;
    auto pipeline = Pipeline::Create(spec, std::move(options));
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }

  static ContributionRequest RequestOf(const Pipeline& pipeline, const Rows& rows) {
    ContributionRequest request;
    request.inputs = NamedTensors{{pipeline.signature().inputs[0].name, rows.input}};
    request.target = rows.target;
    return request;
  }

  static void ExpectEqual(const NamedTensors& got, const NamedTensors& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].name, want[i].name);
      const at::Tensor expected = want[i].tensor.cpu();
      EXPECT_TRUE(at::equal(got[i].tensor, expected))
          << got[i].name << " differs by " << got[i].tensor.sub(expected).abs().max().item().toDouble();
    }
  }

  // Kernels that sum in the order of their threads are refused; of some there are no others, and then the first step's
  // results may be apart by `tolerance` of their size.
  void ExpectStepsOfThePlainLoop(const Model& model, const Cut& cut, double tolerance = 0) {
    at::globalContext().setDeterministicAlgorithms(tolerance == 0, /*warn_only=*/false);
    const PipelineSpec spec = SpecOf(model, cut);
    auto pipeline = Make(spec);
    ASSERT_NE(pipeline, nullptr);
    PlainReference plain = Plain(spec, Gpu().device());
    for (int step = 0; step < (tolerance == 0 ? 3 : 1); ++step) {
      const Rows rows = model.rows();
      const auto outcome = pipeline->TrainStep(RequestOf(*pipeline, rows), {});
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      const auto want = plain.TrainStep({Value(rows.input)}, rows.target, kMicroBatches);
      EXPECT_NEAR(*outcome->loss, want.loss, tolerance * want.loss);
      EXPECT_NEAR(*outcome->gradient_norm, want.gradient_norm, tolerance * want.gradient_norm);
      EXPECT_TRUE(*outcome->applied);
    }
    if (tolerance == 0) ExpectEqual(pipeline->ExportState(false).value(), plain.SavedTensors());
  }

  void ExpectEveryCutEqualsThePlainLoop(const Model& model, double tolerance = 0) {
    for (const Cut& cut : kCuts) {
      SCOPED_TRACE(cut.kind + " on " + std::to_string(cut.devices.size()) + " stages");
      ExpectStepsOfThePlainLoop(model, cut, tolerance);
    }
  }

  std::vector<std::unique_ptr<DevicePool>> pools_;
};

TEST_F(PipelineGpuTest, AGptEqualsThePlainLoop) { ExpectEveryCutEqualsThePlainLoop(Gpt()); }
TEST_F(PipelineGpuTest, AGptWithATiedWeightEqualsThePlainLoop) { ExpectEveryCutEqualsThePlainLoop(TiedGpt()); }
TEST_F(PipelineGpuTest, AResnetComesCloseToThePlainLoop) { ExpectEveryCutEqualsThePlainLoop(Resnet(), 1e-3); }
TEST_F(PipelineGpuTest, AUnetWithSkipsComesCloseToThePlainLoop) { ExpectEveryCutEqualsThePlainLoop(Unet(), 1e-3); }
TEST_F(PipelineGpuTest, AnMlpUnderEveryRuleEqualsThePlainLoop) {
  for (const char* rule : {"sgd", "adam", "nadam", "rmsprop", "adagrad", "lion"}) {
    SCOPED_TRACE(rule);
    ExpectStepsOfThePlainLoop(Mlp(), {.devices = {"cuda:0", "cuda:0"}, .optimizer = rule});
  }
}

TEST_F(PipelineGpuTest, AGptUnderAutocastEqualsThePlainLoop) {
  Model model = Gpt();
  model.model.autocast = "bf16";
  ExpectEveryCutEqualsThePlainLoop(model);
}

TEST_F(PipelineGpuTest, StagesOfSeveralGpusEqualThePlainLoop) {
  Need(2);
  if (IsSkipped()) return;
  for (const Model& model : {Gpt(), TiedGpt()}) ExpectStepsOfThePlainLoop(model, {{"cuda:0", "cuda:1"}});
  ExpectStepsOfThePlainLoop(Unet(), {{"cuda:0", "cuda:1"}}, 1e-3);
}

// The kernels of a CPU round otherwise, and a GPU draws other numbers.
TEST_F(PipelineGpuTest, StagesOnTheHostAndOnAGpuComeCloseToThePlainLoop) {
  for (const Model& model : {Gpt(0), TiedGpt(0), Unet(0)}) {
    const PipelineSpec spec = SpecOf(model, {{"cuda:0", "cpu:0", "cuda:0"}});
    auto pipeline = Make(spec);
    ASSERT_NE(pipeline, nullptr);
    PlainReference plain = Plain(spec, c10::kCPU);
    for (int step = 0; step < 3; ++step) {
      const Rows rows = model.rows();
      const auto outcome = pipeline->TrainStep(RequestOf(*pipeline, rows), {});
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      const auto want = plain.TrainStep({Value(rows.input)}, rows.target, kMicroBatches);
      EXPECT_NEAR(*outcome->loss, want.loss, 1e-3 * std::abs(want.loss));
    }
  }
}

TEST_F(PipelineGpuTest, ChoosesItsOwnCutByMeasuring) {
  const Model model = Gpt();
  PipelineSpec spec = SpecOf(model, {{"cuda:0", "cuda:0"}});
  spec.cut = {.stages = 2};
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  EXPECT_EQ(pipeline->plan().stages.size(), 2u);
  EXPECT_GT(pipeline->plan().makespan_seconds, 0);
  for (const StagePlan& stage : pipeline->plan().stages) EXPECT_GT(stage.stash_bytes, 0);
  EXPECT_TRUE(pipeline->TrainStep(RequestOf(*pipeline, model.rows()), {}).ok());
}

TEST_F(PipelineGpuTest, AForwardAndItsBackwardGiveHostTensors) {
  const Model model = Mlp();
  const PipelineSpec spec = SpecOf(model, {{"cuda:0", "cuda:0"}});
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  PlainReference plain = Plain(spec, Gpu().device());
  const Rows rows = model.rows();
  ForwardRequest request;
  request.inputs = NamedTensors{{pipeline->signature().inputs[0].name, rows.input}};
  request.input_gradients = true;
  auto forward = pipeline->Forward(std::move(request));
  ASSERT_TRUE(forward.ok()) << forward.status();
  const at::Tensor& outputs = *forward->outputs[0].value.tensor();
  ASSERT_TRUE(outputs.is_cpu());
  const at::Tensor leaf = rows.input.detach().to(Gpu().device()).requires_grad_(true);
  const std::vector<Batch> want = plain.Forward({Value(leaf)}, kMicroBatches);
  for (int m = 0; m < kMicroBatches; ++m) {
    const at::Tensor& one = want[m].TensorAt(0);
    EXPECT_TRUE(at::equal(outputs.narrow(0, 2 * m, 2), one.detach().cpu()));
    one.backward(at::ones_like(one));
  }
  const auto backward = pipeline->Backward(forward->graph, {{forward->outputs[0].name, at::ones(outputs.sizes())}},
                                           /*retain_graph=*/false);
  ASSERT_TRUE(backward.ok()) << backward.status();
  const at::Tensor& gradients = *backward->input_gradients[0].value.tensor();
  ASSERT_TRUE(gradients.is_cpu());
  EXPECT_TRUE(at::equal(gradients, leaf.grad().cpu()));
}

TEST_F(PipelineGpuTest, InfersBesideTraining) {
  const Model model = Gpt(/*dropout=*/0);
  const PipelineSpec spec = SpecOf(model, {{"cuda:0", "cuda:0"}});
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  PlainReference plain = Plain(spec, Gpu().device());
  const Rows asked = model.rows();
  std::vector<at::Tensor> want = {plain.Infer({Value(asked.input)}, kMicroBatches).at(0).cpu()};
  constexpr int kCalls = 12;
  std::vector<absl::Notification> done(kCalls);
  std::vector<absl::StatusOr<ForwardOutcome>> outcomes(kCalls, absl::UnknownError("not called"));
  for (int i = 0; i < kCalls; ++i) {
    ForwardRequest request;
    request.inputs = NamedTensors{{pipeline->signature().inputs[0].name, asked.input}};
    pipeline->InferAsync(std::move(request), [&, i](absl::StatusOr<ForwardOutcome> result) {
      outcomes[i] = std::move(result);
      done[i].Notify();
    });
    if (i % 3 != 0) continue;
    const Rows rows = model.rows();
    ASSERT_TRUE(pipeline->TrainStep(RequestOf(*pipeline, rows), {}).ok());
    plain.TrainStep({Value(rows.input)}, rows.target, kMicroBatches);
    want.push_back(plain.Infer({Value(asked.input)}, kMicroBatches).at(0).cpu());
  }
  for (int i = 0; i < kCalls; ++i) {
    done[i].WaitForNotification();
    ASSERT_TRUE(outcomes[i].ok()) << outcomes[i].status();
    EXPECT_TRUE(at::equal(*outcomes[i]->outputs[0].value.tensor(), want.at(outcomes[i]->step))) << outcomes[i]->step;
  }
}

TEST_F(PipelineGpuTest, MovesItsStateToAnotherCut) {
  const Model model = TiedGpt();
  auto one = Make(SpecOf(model, {}));
  auto four = Make(SpecOf(model, kCuts[2]));
  ASSERT_TRUE(one != nullptr && four != nullptr);
  ASSERT_TRUE(one->TrainStep(RequestOf(*one, model.rows()), {}).ok());
  const absl::Status imported = four->ImportState(one->ExportState(true).value(), one->step());
  ASSERT_TRUE(imported.ok()) << imported;
  const Rows rows = model.rows();
  for (Pipeline* pipeline : {one.get(), four.get()}) {
    ASSERT_TRUE(pipeline->TrainStep(RequestOf(*pipeline, rows), {}).ok());
  }
  ExpectEqual(four->ExportState(true).value(), one->ExportState(true).value());
}

// An index beyond its table would end the process's use of the GPU.
TEST_F(PipelineGpuTest, RefusesATokenAndALabelBeyondTheVocabulary) {
  const Model model = Gpt();
  auto pipeline = Make(SpecOf(model, {{"cuda:0", "cuda:0"}}));
  ASSERT_NE(pipeline, nullptr);
  for (const bool token : {true, false}) {
    Rows rows = model.rows();
    (token ? rows.input : rows.target)
        .index_put_({at::ones({1}, at::kLong), at::ones({1}, at::kLong)}, at::full({1}, kVocabulary, at::kLong));
    const absl::Status status = pipeline->TrainStep(RequestOf(*pipeline, rows), {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  EXPECT_FALSE(Gpu().lost());
  EXPECT_TRUE(pipeline->TrainStep(RequestOf(*pipeline, model.rows()), {}).ok());
}

// Takes all that is left of the GPU for the stream that is current, what the allocator keeps for it included.
std::vector<at::Tensor> TakeTheRest(c10::Device device) {
  std::vector<at::Tensor> ballast;
  for (int64_t bytes = int64_t{1} << 30; bytes >= 512; bytes /= 2) {
    while (RunTorch([&] {
             ballast.push_back(at::empty({bytes}, at::TensorOptions().device(device).dtype(at::kByte)));
           }).ok()) {
    }
  }
  return ballast;
}

TEST_F(PipelineGpuTest, AFullDeviceFailsTheStepAndNothingElse) {
  const Model model = Gpt();
  auto pipeline = Make(SpecOf(model, {{"cuda:0", "cuda:0"}}));
  ASSERT_NE(pipeline, nullptr);
  const NamedTensors before = pipeline->ExportState(true).value();
  absl::Status status;
  {
    const std::vector<at::Tensor> ballast = TakeTheRest(Gpu().device());
    status = pipeline->TrainStep(RequestOf(*pipeline, model.rows()), {}).status();
  }
  EXPECT_EQ(ReasonOf(status), "DEVICE_MEMORY") << status;
  EXPECT_FALSE(Gpu().lost());
  ExpectEqual(pipeline->ExportState(true).value(), before);
  EXPECT_TRUE(pipeline->TrainStep(RequestOf(*pipeline, model.rows()), {}).ok());
}

// It is full from a certain place on, where the stages' stream has work. The rule is one whose step needs memory, after it has
// changed some of its state.
TEST_F(PipelineGpuTest, ADeviceThatIsFullAnywhereInAStepFailsItAndNothingElse) {
  const Model model = Gpt();
  for (const char* const place : {"forward", "backward", "keep_for_undo", "update"}) {
    SCOPED_TRACE(place);
    absl::Mutex mutex;  // the stages have threads
    bool armed = false;
    std::vector<at::Tensor> ballast;
    const auto at = [&](std::string_view reached) {
      absl::MutexLock lock(&mutex);
      if (armed && reached == place && ballast.empty()) ballast = TakeTheRest(Gpu().device());
    };
    Pipeline::Options options;
    options.before_action = [&](const Action& action) {
      at(action.kind == ActionKind::kForward ? "forward" : action.kind == ActionKind::kBackward ? "backward" : "");
    };
    options.fault_point = [&](FaultPoint point, int) { at(ToString(point)); };
    auto pipeline = Make(SpecOf(model, {.devices = {"cuda:0", "cuda:0"}, .optimizer = "rmsprop"}), std::move(options));
    ASSERT_NE(pipeline, nullptr);
    const NamedTensors before = pipeline->ExportState(true).value();
    armed = true;
    const absl::Status status = pipeline->TrainStep(RequestOf(*pipeline, model.rows()), {}).status();
    armed = false;
    EXPECT_FALSE(ballast.empty()) << "the place was never reached";
    ballast.clear();
    EXPECT_EQ(ReasonOf(status), "DEVICE_MEMORY") << status;
    EXPECT_FALSE(Gpu().lost());
    ExpectEqual(pipeline->ExportState(true).value(), before);
    EXPECT_TRUE(pipeline->TrainStep(RequestOf(*pipeline, model.rows()), {}).ok());
  }
}

// In a process of its own, as it ends the process's use of the GPU. The host has given the GPU the rest of the step when
// the assertion fails.
TEST_F(PipelineGpuTest, AFaultBehindTheHostInTheLastActionFailsTheStep) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Pipeline::Options options;
        options.fault_point = [](FaultPoint point, int stage) {
          if (point != FaultPoint::kUpdated || stage != 0) return;
          at::_assert_async(at::zeros({1}, at::TensorOptions().device(Gpu().device())));
        };
        const Model model = Gpt();
        const PipelineSpec spec = SpecOf(model, {{"cuda:0", "cuda:0"}});
        auto pipeline = Make(spec, std::move(options));
        const absl::Status status = pipeline->TrainStep(RequestOf(*pipeline, model.rows()), {}).status();
        std::fprintf(stderr, "lost: %d, step: %s\n", Gpu().lost() ? 1 : 0, status.ok() ? "ok" : "failed");
        std::_Exit(!status.ok() && Gpu().lost() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "lost: 1, step: failed");
}

}  // namespace
}  // namespace penstock
