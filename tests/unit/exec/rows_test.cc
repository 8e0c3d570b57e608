// Rows of the ancestors' behaviour that no other test of this room shows.

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/layer_registry.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRowWidth = 4;

// Storage that the layers of kind `test_shared` have in common, until a test asks for a new one.
at::Tensor* shared_weight = nullptr;

// y = x w. Its parameter is a tensor of its own with the others' memory.
class SharedLayer : public Layer {
 public:
  explicit SharedLayer(const at::Tensor& weight) : weight_(AddParameter("weight", weight)) {}
  Batch Forward(const Batch& inputs, const LayerContext&) override { return {at::matmul(inputs.TensorAt(0), weight_)}; }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", DataType::kFp32, {-1, kRowWidth}}}; }
  std::vector<TensorSignature> OutputSignature() const override {
    return {{"output", DataType::kFp32, {-1, kRowWidth}}};
  }

 private:
  const at::Tensor weight_;
};

// Gives a list of its input.
class ListLayer : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override { return {Value::List({inputs[0]})}; }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", DataType::kFp32, {-1, kRowWidth}}}; }
  std::vector<TensorSignature> OutputSignature() const override {
    return {{"", DataType::kUnspecified, {}, /*any=*/true}};
  }
};

// Takes such a list, and gives what is in it.
class UnlistLayer : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    PENSTOCK_CHECK(inputs.atomic() && inputs[0].list() != nullptr);
    return {inputs[0].list()->at(0)};
  }
  std::vector<TensorSignature> InputSignature() const override {
    return {{"", DataType::kUnspecified, {}, /*any=*/true}};
  }
  std::vector<TensorSignature> OutputSignature() const override {
    return {{"output", DataType::kFp32, {-1, kRowWidth}}};
  }
};

class RowsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static at::Tensor weight;
    shared_weight = &weight;
    const auto make_shared = [](const LayerRequest& request) -> absl::StatusOr<std::unique_ptr<Layer>> {
      return std::make_unique<SharedLayer>(request.shapes_only ? at::empty({kRowWidth, kRowWidth}, at::kMeta)
                                                               : *shared_weight);
    };
    const auto make_list = [](const LayerRequest&) -> absl::StatusOr<std::unique_ptr<Layer>> {
      return std::make_unique<ListLayer>();
    };
    const auto make_unlist = [](const LayerRequest&) -> absl::StatusOr<std::unique_ptr<Layer>> {
      return std::make_unique<UnlistLayer>();
    };
    static const bool registered =  // this fixture has two suites
        RegisterLayerKind("test_shared", make_shared).ok() && RegisterLayerKind("test_list", make_list).ok() &&
        RegisterLayerKind("test_unlist", make_unlist).ok();
    ASSERT_TRUE(registered);
  }
  void SetUp() override {
    at::manual_seed(3);
    *shared_weight = at::randn({kRowWidth, kRowWidth});
  }

  static PipelineSpec Spec(const std::vector<std::string>& kinds, std::vector<int> balance) {
    PipelineSpec spec;
    for (const std::string& kind : kinds) {
      spec.model.layers.push_back({.kind = kind, .name = absl::StrCat("l", spec.model.layers.size()), .options = {}});
    }
    spec.cut.balance = std::move(balance);
    spec.schedule = {"gpipe", 2, CheckpointMode::kNever};
    spec.optimizer.name = "sgd";
    spec.optimizer.options = {{"learning_rate", 1.0}};
    spec.loss.name = "mean_squared_error";
    return spec;
  }

  Pipeline::Options Options() {
    Pipeline::Options options;
    options.devices = &pool_;
    options.profile = {.rows = 2, .repeats = 1};
    options.before_action = [this](const Action& action) { actions_.push_back(action); };
    return options;
  }

  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec) {
    auto pipeline = Pipeline::Create(spec, Options());
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }

  static ContributionRequest MiniBatch(const at::Tensor& input, const at::Tensor& target) {
    ContributionRequest request;
    request.inputs = NamedTensors{{"input", input}};
    request.target = target;
    return request;
  }

  static at::Tensor StateOf(const Pipeline& pipeline, const std::string& name) {
    for (const NamedTensor& entry : NamedTensors(pipeline.ExportState(false).value())) {
      if (entry.name == name) return entry.tensor;
    }
    ADD_FAILURE() << "no " << name;
    return at::zeros({1});
  }

  DevicePool pool_{{{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kSerial};
  std::vector<Action> actions_;
};

std::vector<std::string>* labels = nullptr;

std::unique_ptr<at::ObserverContext> NoteLabel(const at::RecordFunction& function) {
  if (labels != nullptr) labels->emplace_back(function.name());
  return nullptr;
}

TEST_F(RowsTest, ProfilersSeeALabelForEachActionOfAMicroBatch) {
  PipelineSpec spec = Spec({"test_shared", "relu"}, {1, 1});
  spec.schedule.checkpoint = CheckpointMode::kExceptLast;
  auto pipeline = Make(spec);
  const ContributionRequest batch = MiniBatch(at::randn({4, kRowWidth}), at::randn({4, kRowWidth}));
  std::vector<std::string> seen;
  labels = &seen;
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(NoteLabel).scopes({at::RecordScope::USER_SCOPE}));
  actions_.clear();
  ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
  at::removeCallback(handle);
  std::vector<std::string> expected;
  for (const Action& action : actions_) {
    if (action.kind == ActionKind::kOptimizer) continue;
    expected.push_back(absl::StrCat("chunk", action.micro_batch, "-part", action.stage));
  }
  EXPECT_EQ(seen, expected);
  // Micro-batch 0 is recomputed, 1 is not.
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "chunk0-part1"), 3);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "chunk1-part0"), 2);
  seen.clear();
  ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
  labels = nullptr;
  EXPECT_THAT(seen, IsEmpty());
}

TEST_F(RowsTest, ParametersSharedOverDevicesAreRefused) {
  PipelineSpec spec = Spec({"test_shared", "relu", "test_shared"}, {2, 1});
  spec.devices = {"cpu:0", "cpu:1"};
  const absl::Status status = Pipeline::Create(spec, Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(status)["value"], "l2.weight");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("module with duplicate parameters on distinct devices is not supported"));
}

TEST_F(RowsTest, ParametersSharedOnOneDeviceTrainAsOne) {
  const at::Tensor start = shared_weight->clone();
  for (const std::vector<int>& balance : std::vector<std::vector<int>>{{3}, {1, 2}, {2, 1}}) {
    at::Tensor weight = start.clone().requires_grad_(true);
    *shared_weight = start.clone();
    PipelineSpec spec = Spec({"test_shared", "relu", "test_shared"}, balance);
    spec.devices.assign(balance.size(), "cpu:1");
    spec.optimizer.options["learning_rate"] = 0.1;
    auto pipeline = Make(spec);
    ASSERT_NE(pipeline, nullptr);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor input = at::randn({4, kRowWidth});
      const at::Tensor target = at::randn({4, kRowWidth});
      ASSERT_TRUE(pipeline->TrainStep(MiniBatch(input, target), {}).ok());
      at::mse_loss(at::matmul(at::relu(at::matmul(input, weight)), weight), target).backward();
      weight = (weight - 0.1 * weight.grad()).detach().requires_grad_(true);
    }
    EXPECT_FALSE(at::allclose(weight, start, 1e-3, 1e-3));
    EXPECT_TRUE(at::allclose(StateOf(*pipeline, "l0.weight"), weight, 1e-5, 1e-6)) << balance.size();
  }
}

TEST_F(RowsTest, ARankListIsPlannedAndRunOnRankZeroOnly) {
  PipelineSpec spec = Spec({"test_shared", "relu", "relu"}, {1, 1, 1});
  spec.cut.ranks = {0, 0, 1};
  auto plan = Pipeline::MakePlan(spec, Options());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[2].rank, Rank(1));
  const absl::Status status = Pipeline::Create(spec, Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(status)["field"], "spec.cut.ranks");
  EXPECT_THAT(std::string(status.message()), HasSubstr("need other processes, and this daemon is alone"));
  spec.cut.ranks = {0, 0, 0, 1};  // the last one is not used
  auto pipeline = Make(spec);
  ASSERT_NE(pipeline, nullptr);
  EXPECT_THAT(pipeline->plan().why, Contains("More ranks than partitions, some ranks unused: [1]."));
  EXPECT_TRUE(pipeline->TrainStep(MiniBatch(at::randn({4, kRowWidth}), at::randn({4, kRowWidth})), {}).ok());
}

// Within a stage, over a cut, and out of the model: where the plan is made by measuring.
TEST_F(RowsTest, AListIsAnOutputOfAStage) {
  for (const std::vector<int>& balance : {std::vector<int>{1, 2}, std::vector<int>{2, 1}, std::vector<int>{1, 1}}) {
    std::vector<std::string> kinds = {"test_shared", "test_list"};
    if (balance != std::vector<int>{1, 1}) kinds.push_back("test_unlist");
    PipelineSpec spec = Spec(kinds, balance);
    spec.loss.name.clear();
    auto pipeline = Make(spec);
    ASSERT_NE(pipeline, nullptr);
    const at::Tensor input = at::randn({4, kRowWidth});
    auto outcome = pipeline->Forward(
        {.inputs = NamedTensors{{"input", input}}, .micro_batches = 2, .outputs = {}, .cancel = nullptr});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_TRUE(at::allclose(*outcome->outputs[0].value.tensor(), at::matmul(input, *shared_weight)));
  }
}

TEST_F(RowsTest, InputsOfAnotherDeviceAreRefused) {
  auto pipeline = Make(Spec({"test_shared"}, {1}));
  const at::Tensor elsewhere = at::empty({4, kRowWidth}, at::kMeta);
  const absl::Status status = pipeline->TrainStep(MiniBatch(elsewhere, at::randn({4, kRowWidth})), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValuesOf(status)["field"], "inputs[input]");
  EXPECT_EQ(ValuesOf(status)["value"], "meta");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("All inputs should be on the same device as the first partition"));
}

// A pipeline of one batch norm, and what LibTorch's says of the same mini-batch in one piece.
class BatchNormInPipe : public RowsTest {
 protected:
  static constexpr int64_t kFeatures = 3;

  static PipelineSpec BatchNormSpec(CheckpointMode mode, int chunks) {
    PipelineSpec spec = Spec({"batch_norm"}, {1});
    spec.model.layers[0].options = {{"features", kFeatures}};
    spec.model.deferred_batch_norm = true;
    spec.schedule = {"gpipe", chunks, mode};
    return spec;
  }
};

TEST_F(BatchNormInPipe, RunningStatisticsAreOfTheWholeMiniBatch) {
  for (CheckpointMode mode : {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever}) {
    auto pipeline = Make(BatchNormSpec(mode, 2));
    ASSERT_NE(pipeline, nullptr);
    const at::Tensor input = at::rand({4, kFeatures, 10, 10});
    ASSERT_TRUE(pipeline->TrainStep(MiniBatch(input, at::zeros_like(input)), {}).ok());
    at::Tensor mean = at::zeros({kFeatures});
    at::Tensor variance = at::ones({kFeatures});
    at::batch_norm(input, at::ones({kFeatures}), at::zeros({kFeatures}), mean, variance, /*training=*/true, 0.1, 1e-5,
                   /*cudnn_enabled=*/false);
    EXPECT_FALSE(at::allclose(mean, at::zeros({kFeatures}), 0, 1e-2));
    EXPECT_TRUE(at::allclose(StateOf(*pipeline, "l0.running_mean"), mean, 0, 1e-4));
    EXPECT_TRUE(at::allclose(StateOf(*pipeline, "l0.running_var"), variance, 0, 1e-4));
    EXPECT_EQ(StateOf(*pipeline, "l0.num_batches_tracked").item<int64_t>(), 1);
  }
}

TEST_F(BatchNormInPipe, GradientsOfOneMicroBatch) {
  for (CheckpointMode mode : {CheckpointMode::kNever, CheckpointMode::kAlways}) {
    auto pipeline = Make(BatchNormSpec(mode, 1));
    ASSERT_NE(pipeline, nullptr);
    const at::Tensor input = at::rand({4, kFeatures, 10, 10});
    const at::Tensor target = at::rand({4, kFeatures, 10, 10});
    ASSERT_TRUE(pipeline->TrainStep(MiniBatch(input, target), {}).ok());  // at rate 1: start - gradient
    at::Tensor weight = at::ones({kFeatures}).requires_grad_(true);
    at::Tensor bias = at::zeros({kFeatures}).requires_grad_(true);
    at::mse_loss(at::batch_norm(input, weight, bias, {}, {}, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false),
                 target)
        .backward();
    EXPECT_GT(weight.grad().abs().min().item<double>(), 1e-2);
    EXPECT_TRUE(at::allclose(1 - StateOf(*pipeline, "l0.weight"), weight.grad(), 0, 1e-4));
    EXPECT_TRUE(at::allclose(0 - StateOf(*pipeline, "l0.bias"), bias.grad(), 0, 1e-4));
  }
}

}  // namespace
}  // namespace penstock
