// A pipeline on accelerators that compute on the CPU: placement, copies between devices, and the order of streams.

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/accelerators.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "tests/support/plain_reference.h"

namespace penstock {
namespace {

constexpr int64_t kWidth = 6;

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
  const LayerSpec linear{"linear", "", {{"in", kWidth}, {"out", kWidth}}};
  const OptionMap skip = {{"name", std::string("skip")}};
  PipelineSpec spec;
  spec.model.layers = {linear,
                       {"stash", "", skip},
                       {"dropout", "", {{"p", 0.25}}},
                       linear,
                       {"batch_norm", "", {{"features", kWidth}}},
                       {"pop_add", "", skip},
                       linear};
  spec.cut.balance = {2, 3, 2};
  spec.devices = {"cuda:0", "cpu:0", "cuda:1"};
  spec.schedule = {"1f1b", 4, mode};
  spec.optimizer = {.name = "adamw"};
  spec.loss.name = "mean_squared_error";
  spec.seed = 11;
  return spec;
}

void ExpectEqual(const NamedTensors& got, const NamedTensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].name, want[i].name);
    EXPECT_TRUE(at::equal(got[i].tensor, want[i].tensor)) << got[i].name;
  }
}

TEST(AcceleratorPipeline, STR_2_STR_3_StagesOnThreeDevicesEqualThePlainLoop) {
  for (const DevicePool::Mode pool_mode : {DevicePool::Mode::kSerial, DevicePool::Mode::kThreads}) {
    for (const CheckpointMode mode : {CheckpointMode::kAlways, CheckpointMode::kNever}) {
      DevicePool pool(Devices(), pool_mode);
      const PipelineSpec spec = Spec(mode);
      auto pipeline = Pipeline::Create(spec, {.devices = &pool});
      ASSERT_TRUE(pipeline.ok()) << pipeline.status();
      testing::PlainReference plain(
          {.model = spec.model, .loss = spec.loss, .optimizer = spec.optimizer, .seed = spec.seed});
      for (int step = 0; step < 3; ++step) {
        ContributionRequest request;
        const at::Tensor input = at::randn({8, kWidth});
        request.target = at::randn({8, kWidth});
        request.inputs = NamedTensors{{"input", input}};
        const at::Tensor target = request.target;
        const auto outcome = (*pipeline)->TrainStep(std::move(request), {});
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        const auto want = plain.TrainStep({Value(input)}, target, 4);
        EXPECT_EQ(*outcome->loss, want.loss);
        EXPECT_EQ(*outcome->gradient_norm, want.gradient_norm);
      }
      ExpectEqual((*pipeline)->ExportState(false), plain.SavedTensors());
    }
  }
}

TEST(AcceleratorPipeline, PIPE_9_ALayerStandsWhereItsDeviceSays) {
  DevicePool pool(Devices(), DevicePool::Mode::kSerial);
  PipelineSpec spec = Spec(CheckpointMode::kNever);
  spec.cut = {};
  spec.devices = {};
  spec.model.layers[0].device = "cuda:1";
  spec.model.layers[3].device = "cuda";  // cuda:0
  auto pipeline = Pipeline::Create(spec, {.devices = &pool});
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  ASSERT_EQ((*pipeline)->plan().stages.size(), 2u);
  EXPECT_EQ((*pipeline)->plan().stages[0].device, "cuda:1");
  EXPECT_EQ((*pipeline)->plan().stages[0].layers.size(), 3u) << "layers without a device join the stage before";
  EXPECT_EQ((*pipeline)->plan().stages[1].device, "cuda:0");
}

TEST(AcceleratorPipeline, S8_pt_nested_modules_ALayerOfLayersStandsOnOneDevice) {
  DevicePool pool(Devices(), DevicePool::Mode::kSerial);
  const LayerSpec linear{"linear", "", {{"in", int64_t{2}}, {"out", int64_t{2}}}};
  LayerSpec nested{"sequential", "nested", {}};
  nested.device = "cuda:1";
  nested.layers = {linear, linear};
  PipelineSpec spec;
  spec.model.layers = {nested};
  spec.optimizer.name = "sgd";
  auto pipeline = Pipeline::Create(spec, {.devices = &pool});
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  ASSERT_EQ((*pipeline)->plan().stages.size(), 1u);
  EXPECT_EQ((*pipeline)->plan().stages[0].device, "cuda:1");
  ForwardRequest request;
  request.inputs = NamedTensors{{(*pipeline)->signature().inputs[0].name, at::randn({10, 2})}};
  const auto outcome = (*pipeline)->Forward(std::move(request));
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->outputs[0].value.tensor()->sizes(), at::IntArrayRef({10, 2}));
}

}  // namespace
}  // namespace penstock
