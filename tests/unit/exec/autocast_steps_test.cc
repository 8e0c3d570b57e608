// Steps under autocast are those of a plain loop, which casts the weights anew after each step.

#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"

namespace penstock {
namespace {

constexpr int64_t kFeatures = 8;
constexpr double kRate = 0.5;

std::unique_ptr<Pipeline> TwoLinears(DevicePool& pool, CheckpointMode mode) {
  const LayerSpec linear{"linear", "", {{"in", kFeatures}, {"out", kFeatures}}};
  PipelineSpec spec;
  spec.model.layers = {linear, linear};
  spec.model.autocast = "bf16";
  spec.cut.balance = {1, 1};
  spec.schedule = {"1f1b", 2, mode};
  spec.optimizer.name = "sgd";
  spec.optimizer.options = {{"learning_rate", kRate}};
  spec.loss.name = "mean_squared_error";
  Pipeline::Options options;
  options.devices = &pool;
  return Pipeline::Create(spec, std::move(options)).value();
}

// A step of LibTorch's own operators, with its autocast as a training loop uses it; weights: weight and bias of each
// layer.
void PlainStep(std::vector<at::Tensor>& weights, const at::Tensor& input, const at::Tensor& target) {
  for (int64_t row : {0, 2}) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_cache_enabled(false);  // clearing it would clear what the pipeline has left there, too
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor hidden = at::linear(input.narrow(0, row, 2), weights[0], weights[1]);
    const at::Tensor output = at::linear(hidden, weights[2], weights[3]);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_cache_enabled(true);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    at::mse_loss(output.to(at::kFloat), target.narrow(0, row, 2)).mul(0.5).backward();
  }
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> parameters;
  for (at::Tensor& weight : weights) {
    gradients.push_back(weight.grad().clone());
    parameters.push_back(weight.detach());
    weight.mutable_grad().reset();
  }
  at::_fused_sgd_(parameters, gradients, {}, /*weight_decay=*/0, /*momentum=*/0, kRate, /*dampening=*/0,
                  /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
}

TEST(AutocastSteps, NoCastOfAWeightOutlivesItsStep) {
  DevicePool pool({{"cpu:0", {0}}, {"cpu:1", {0}}}, DevicePool::Mode::kSerial);
  for (const CheckpointMode mode : {CheckpointMode::kNever, CheckpointMode::kAlways}) {
    const std::unique_ptr<Pipeline> pipeline = TwoLinears(pool, mode);
    std::vector<at::Tensor> plain;
    const NamedTensors initial = pipeline->ExportState(false).value();
    for (const NamedTensor& one : initial) {
      plain.push_back(one.tensor.clone().requires_grad_(true));
    }
    ASSERT_EQ(plain.size(), 4u);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor input = at::randn({4, kFeatures});
      const at::Tensor target = at::randn({4, kFeatures});
      ContributionRequest request;
      request.inputs = NamedTensors{{"input", input}};
      request.target = target;
      ASSERT_TRUE(pipeline->TrainStep(std::move(request), {}).ok());
      PlainStep(plain, input, target);
      const NamedTensors state = pipeline->ExportState(false).value();
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(at::equal(state[i].tensor, plain[i])) << state[i].name << " after step " << step + 1;
      }
    }
  }
}

}  // namespace
}  // namespace penstock
