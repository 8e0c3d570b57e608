// Groups of parameters over cuts and ties, settings that change, and weights of elements in a step.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"

namespace penstock {
namespace {

constexpr int64_t kGroupWidth = 3;

class OptimizerGroups : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Pipeline>> Make(const PipelineSpec& spec) {
    Pipeline::Options options;
    options.devices = &pool_;
    return Pipeline::Create(spec, std::move(options));
  }

  // The weights of the first and the last layer are one.
  static PipelineSpec Spec(std::vector<int> balance = {2, 1}) {
    const LayerSpec linear{"linear", "", {{"in", kGroupWidth}, {"out", kGroupWidth}}};
    PipelineSpec spec;
    spec.model.layers = {linear, linear, linear};
    spec.model.ties = {{.parameters = {"layer0.weight", "layer2.weight"}}};
    spec.cut.balance = std::move(balance);
    spec.schedule = {"1f1b", 2, CheckpointMode::kAlways};
    spec.optimizer.name = "adamw";
    spec.optimizer.options = {{"learning_rate", 0.1}};
    spec.loss.name = "mean_squared_error";
    return spec;
  }

  static ContributionRequest Rows(const at::Tensor& input, const at::Tensor& target, const at::Tensor& weights = {}) {
    ContributionRequest request;
    request.inputs = NamedTensors{{"input", input}};
    request.target = target;
    request.weights = weights;
    return request;
  }

  void Train(Pipeline& pipeline, int steps = 2) {
    for (int step = 0; step < steps; ++step) ASSERT_TRUE(pipeline.TrainStep(Rows(input_, target_), {}).ok());
  }

  static at::Tensor TensorOf(const Pipeline& pipeline, const std::string& name) {
    const NamedTensors state = pipeline.ExportState(true).value();
    for (const NamedTensor& one : state) {
      if (one.name == name) return one.tensor;
    }
    ADD_FAILURE() << name;
    return {};
  }

  static void ExpectSame(const NamedTensors& got, const NamedTensors& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i].tensor, want[i].tensor)) << got[i].name;
  }

  const at::Tensor input_ = at::randn({4, kGroupWidth});
  const at::Tensor target_ = at::randn({4, kGroupWidth});
  DevicePool pool_{{{"cpu:0", {0}}, {"cpu:1", {0}}, {"cpu:2", {0}}}, DevicePool::Mode::kSerial};
};

TEST_F(OptimizerGroups, FreezeATiedParameterOnEveryStageThatUsesIt) {
  std::vector<NamedTensors> states;
  for (const std::vector<int>& balance : std::vector<std::vector<int>>{{3}, {2, 1}, {1, 1, 1}}) {
    PipelineSpec spec = Spec(balance);
    spec.optimizer.groups = {{.patterns = {"layer0.weight"}, .frozen = true},
                             {.patterns = {"*.bias"}, .options = {{"learning_rate", 0.3}}}};
    spec.optimizer.clip_norm = 0.5;
    const auto pipeline = Make(spec).value();
    const at::Tensor tied = TensorOf(*pipeline, "layer0.weight").clone();
    const at::Tensor free = TensorOf(*pipeline, "layer1.weight").clone();
    Train(*pipeline);
    EXPECT_TRUE(at::equal(TensorOf(*pipeline, "layer0.weight"), tied));
    EXPECT_TRUE(TensorOf(*pipeline, "optimizer/layer0.weight/first_moment").eq(0).all().item<bool>());
    EXPECT_FALSE(at::equal(TensorOf(*pipeline, "layer1.weight"), free));

    OptimizerSpec learnt = pipeline->optimizer();
    learnt.groups.erase(learnt.groups.begin());
    ASSERT_TRUE(pipeline->UpdateOptimizer(learnt).ok());
    Train(*pipeline);
    EXPECT_FALSE(at::equal(TensorOf(*pipeline, "layer0.weight"), tied));
    EXPECT_EQ(TensorOf(*pipeline, "optimizer/layer0.weight/step").item<float>(), 2);
    EXPECT_EQ(TensorOf(*pipeline, "optimizer/layer1.weight/step").item<float>(), 4);

    learnt.groups = {{.patterns = {"layer2.bias", "layer1.*"}, .frozen = true}};
    ASSERT_TRUE(pipeline->UpdateOptimizer(learnt).ok());
    const at::Tensor bias = TensorOf(*pipeline, "layer2.bias").clone();
    Train(*pipeline);
    EXPECT_TRUE(at::equal(TensorOf(*pipeline, "layer2.bias"), bias));
    states.push_back(pipeline->ExportState(true).value());
  }
  for (size_t i = 1; i < states.size(); ++i) ExpectSame(states[i], states[0]);
}

TEST_F(OptimizerGroups, MayFreezeEverything) {
  PipelineSpec spec = Spec();
  spec.optimizer.groups = {{.patterns = {"*"}, .frozen = true}};
  const auto pipeline = Make(spec).value();
  const NamedTensors before = pipeline->ExportState(true).value();
  const RunOutcome outcome = pipeline->TrainStep(Rows(input_, target_), {}).value();
  EXPECT_EQ(outcome.gradient_norm, 0);
  EXPECT_EQ(outcome.step, 1);
  ExpectSame(pipeline->ExportState(true).value(), before);
}

TEST_F(OptimizerGroups, GoByTheFirstNameOfATiedParameter) {
  PipelineSpec spec = Spec();
  spec.optimizer.groups = {{.patterns = {"layer2.weight"}, .frozen = true}};
  EXPECT_EQ(ValuesOf(Make(spec).status())["field"], "spec.optimizer.groups[0].patterns[0]");
  spec.optimizer.groups[0].patterns = {"layer?.weight"};
  EXPECT_TRUE(Make(spec).ok());
}

TEST_F(OptimizerGroups, ChangeWhollyOrNotAtAll) {
  const auto pipeline = Make(Spec()).value();
  const auto refused = [&](const OptimizerSpec& spec) {
    const absl::Status status = pipeline->UpdateOptimizer(spec);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(pipeline->optimizer().groups.empty());
    EXPECT_EQ(pipeline->optimizer().clip_norm, 0);
    return ValuesOf(status)["field"];
  };
  OptimizerSpec spec = pipeline->optimizer();
  spec.clip_norm = 0.25;
  spec.groups = {{.patterns = {"layer0.weight"}, .options = {{"learning_rate", 0.4}}}};
  OptimizerSpec bad = spec;
  bad.name = "sgd";
  EXPECT_EQ(refused(bad), "spec.optimizer.name");
  bad = spec;
  bad.groups[0].patterns.push_back("layer9.*");
  EXPECT_EQ(refused(bad), "spec.optimizer.groups[0].patterns[1]");
  bad = spec;
  bad.groups[0].options["beta1"] = 1.5;
  EXPECT_EQ(refused(bad), "spec.optimizer.groups[0].options[beta1]");
  bad = spec;
  bad.learning_rate_schedule.name = "sawtooth";
  EXPECT_EQ(refused(bad), "spec.optimizer.learning_rate_schedule.name");
  ASSERT_TRUE(pipeline->ForwardBackward(Rows(input_, target_)).ok());
  EXPECT_EQ(ReasonOf(pipeline->UpdateOptimizer(spec)), "ACCUMULATION_OPEN");
  pipeline->DiscardGradients();

  spec.learning_rate_schedule = {.name = "linear", .total_steps = 2};
  ASSERT_TRUE(pipeline->UpdateOptimizer(spec).ok());
  EXPECT_EQ(pipeline->TrainStep(Rows(input_, target_), {})->learning_rate, 0.1);
  EXPECT_EQ(pipeline->TrainStep(Rows(input_, target_), {})->learning_rate, 0.05);
  // A momentum where there was none.
  PipelineSpec plain = Spec();
  plain.optimizer = {.name = "sgd"};
  const auto other = Make(plain).value();
  EXPECT_EQ(ValuesOf(other->UpdateOptimizer({.name = "sgd", .options = {{"momentum", 0.9}}}))["field"],
            "spec.optimizer.options");
}

TEST_F(OptimizerGroups, WeightsOfElementsAreThoseOfTheWholeStep) {
  PipelineSpec spec = Spec();
  spec.optimizer = {.name = "sgd", .options = {{"learning_rate", 0.1}}};
  const at::Tensor weights = at::tensor({0.f, 3.f, 1.f, 0.5f});
  const auto whole = Make(spec).value();
  const RunOutcome outcome = whole->TrainStep(Rows(input_, target_, weights), {}).value();
  // Rows that stand three times, twice less often, and not at all.
  const at::Tensor chosen = at::tensor({1, 1, 1, 1, 1, 1, 2, 2, 3}, at::kLong);
  const auto repeated = Make(spec).value();
  const RunOutcome expected =
      repeated->TrainStep(Rows(input_.index_select(0, chosen), target_.index_select(0, chosen)), {}).value();
  EXPECT_NEAR(*outcome.loss, *expected.loss, 1e-6);
  EXPECT_TRUE(TensorOf(*whole, "layer1.weight").allclose(TensorOf(*repeated, "layer1.weight"), 1e-5, 1e-6));
  // The same in two contributions of unequal weight.
  const auto parts = Make(spec).value();
  for (const int64_t begin : {0, 1}) {
    const int64_t rows = begin == 0 ? 1 : 3;
    ContributionRequest part =
        Rows(input_.narrow(0, begin, rows), target_.narrow(0, begin, rows), weights.narrow(0, begin, rows));
    part.total_rows = 4;
    EXPECT_EQ(ValuesOf(parts->ForwardBackward(part).status())["field"], "total_elements");
    part.total_elements = 4;
    if (begin == 1) {
      EXPECT_EQ(ValuesOf(parts->ForwardBackward(part).status())["field"], "total_elements") << "less than its own";
    }
    part.total_elements = 4.5 * kGroupWidth;
    const RunOutcome added = parts->ForwardBackward(part).value();
    if (begin == 0) {
      EXPECT_EQ(added.loss, 0) << "nothing counts";
    }
  }
  ASSERT_TRUE(parts->OptimizerStep({}).ok());
  EXPECT_TRUE(TensorOf(*parts, "layer1.weight").allclose(TensorOf(*whole, "layer1.weight"), 1e-5, 1e-6));

  ContributionRequest even = Rows(input_, target_, at::tensor({0.5, 1.5, 0.5, 1.5}));
  even.total_rows = 4;
  EXPECT_EQ(ValuesOf(parts->ForwardBackward(even).status())["field"], "total_elements")
      << "though they sum to its size";

  ContributionRequest wrong = Rows(input_, target_, at::full({4}, -1.0));
  EXPECT_EQ(ValuesOf(whole->TrainStep(wrong, {}).status())["field"], "weights");
  wrong.weights = at::full({3}, 1.0);
  EXPECT_EQ(ValuesOf(whole->TrainStep(wrong, {}).status())["field"], "weights.shape");
  EXPECT_EQ(whole->step(), 1);
}

}  // namespace
}  // namespace penstock
