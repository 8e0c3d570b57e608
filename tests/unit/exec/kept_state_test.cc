// What a failed mini-batch and a restore must leave behind: statistics as they were, copies of tied weights all alike.

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/schedule/action.h"
#include "tests/support/small_specs.h"

namespace penstock {
namespace {

constexpr int64_t kWidth = 3;

class KeptState : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec) {
    Pipeline::Options options;
    options.devices = &pool_;
    options.before_action = [this](const Action& action) {
      if (ToString(action) == break_at_) throw std::runtime_error("broken on purpose");
    };
    return Pipeline::Create(spec, std::move(options)).value();
  }

  static ContributionRequest Rows(const at::Tensor& input, const at::Tensor& target) {
    ContributionRequest request;
    request.inputs = NamedTensors{{"input", input}};
    request.target = target;
    return request;
  }

  static void ExpectSame(const NamedTensors& got, const NamedTensors& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i].tensor, want[i].tensor)) << got[i].name;
  }

  // A failed mini-batch first, on one of two pipelines; then both take the same step.
  void ExpectNoTraceOfAFailedMiniBatch(const PipelineSpec& spec) {
    auto failing = Make(spec);
    auto sound = Make(spec);
    break_at_ = "1B1";
    // Three micro-batches: one more than the next mini-batch has, so that what they noted would not be written over.
    ContributionRequest broken = Rows(at::randn({6, kWidth}), at::randn({6, kWidth}));
    broken.micro_batches = 3;
    ASSERT_FALSE(failing->ForwardBackward(std::move(broken)).ok());
    break_at_.clear();
    for (Pipeline* pipeline : {failing.get(), sound.get()}) {
      ASSERT_TRUE(pipeline->ForwardBackward(Rows(input_, target_)).ok());
      ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
    }
    ExpectSame(failing->ExportState(true).value(), sound->ExportState(true).value());
  }

  const at::Tensor input_ = at::randn({4, kWidth});
  const at::Tensor target_ = at::randn({4, kWidth});
  DevicePool pool_{{{"cpu:0", {0}}, {"cpu:1", {0}}}, DevicePool::Mode::kSerial};
  std::string break_at_;
};

TEST_F(KeptState, AFailedMiniBatchLeavesNoTraceInTheStatistics) {
  ExpectNoTraceOfAFailedMiniBatch(testing::TiedAroundBatchNorm());
}

TEST_F(KeptState, NorInThoseOfALayerWithinOthers) {
  PipelineSpec spec = testing::TiedAroundBatchNorm();
  LayerSpec& norm = spec.model.layers[1];
  norm = {"sequential", "", {}, "", {}, {{"sequential", "", {}, "", {}, {norm}}}};
  ExpectNoTraceOfAFailedMiniBatch(spec);
}

// Counts this thread's allocations while it exists.
class AllocatedBytes {
 public:
  int64_t now() const { return counter_->allocated; }

 private:
  struct Counter : public c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override {
      allocated += std::max<int64_t>(change, 0);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t allocated = 0;
  };
  const std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

TEST_F(KeptState, AFurtherContributionCopiesNoGradients) {
  auto pipeline = Make(testing::TiedAroundBatchNorm());
  ASSERT_TRUE(pipeline->TrainStep(Rows(input_, target_), {}).ok());
  const AllocatedBytes bytes;  // in serial mode all stages are on this thread
  std::vector<int64_t> of_contribution;
  for (int i = 0; i < 3; ++i) {
    const int64_t had = bytes.now();
    ASSERT_TRUE(pipeline->ForwardBackward(Rows(input_, target_)).ok());
    of_contribution.push_back(bytes.now() - had);
  }
  EXPECT_EQ(of_contribution[1], of_contribution[0]);
  EXPECT_EQ(of_contribution[2], of_contribution[0]);
}

// Dropout, batch norms merged over the mini-batch, one of them within another layer, and a tied weight.
PipelineSpec WithAllThatAccumulates(std::vector<int> balance) {
  const LayerSpec linear{"linear", "", {{"in", kWidth}, {"out", kWidth}}};
  const LayerSpec norm{"batch_norm", "", {{"features", kWidth}}};
  PipelineSpec spec;
  spec.model.layers = {linear, norm, {"dropout", "", {{"p", 0.3}}}, {"sequential", "", {}, "", {}, {norm}}, linear};
  spec.model.deferred_batch_norm = true;
  spec.model.ties = {{.parameters = {"layer0.weight", "layer4.weight"}}};
  spec.cut.balance = std::move(balance);
  spec.schedule = {"1f1b", 2, CheckpointMode::kAlways};
  spec.optimizer.name = "adamw";
  spec.optimizer.clip_norm = 0.05;
  spec.loss.name = "mean_squared_error";
  return spec;
}

TEST_F(KeptState, WhatIsAccumulatedGoesOutAndIntoAnotherPipelineBitForBit) {
  for (const std::vector<int>& balance : {std::vector<int>{5}, {3, 2}}) {
    const PipelineSpec spec = WithAllThatAccumulates(balance);
    auto undisturbed = Make(spec);
    ASSERT_TRUE(undisturbed->TrainStep(Rows(input_, target_), {}).ok());
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(undisturbed->ForwardBackward(Rows(input_ + i, target_)).ok());
    const Accumulation accumulated = undisturbed->ExportAccumulation().value();
    EXPECT_TRUE(accumulated.open);
    EXPECT_EQ(accumulated.next_micro_batch, 4);
    EXPECT_EQ(ByteSize(accumulated.tensors), undisturbed->AccumulationBytes());

    auto other = Make(spec);
    ASSERT_TRUE(other->ImportState(undisturbed->ExportState(true).value(), undisturbed->step()).ok());
    ASSERT_TRUE(other->ImportAccumulation(accumulated).ok());
    EXPECT_TRUE(other->accumulating());
    ExpectSame(other->ExportGradients().value(), undisturbed->ExportGradients().value());
    std::vector<RunOutcome> told;
    for (Pipeline* pipeline : {undisturbed.get(), other.get()}) {
      told.push_back(pipeline->ForwardBackward(Rows(input_ * 2, target_)).value());
      told.push_back(pipeline->OptimizerStep({}).value());
      told.push_back(pipeline->TrainStep(Rows(input_, target_), {}).value());
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(told[i].loss, told[i + 3].loss);
      EXPECT_EQ(told[i].gradient_norm, told[i + 3].gradient_norm);
    }
    ExpectSame(other->ExportState(true).value(), undisturbed->ExportState(true).value());
    EXPECT_TRUE(undisturbed->ExportAccumulation()->none() && undisturbed->ExportAccumulation()->tensors.empty());
  }
}

TEST_F(KeptState, ALossThatWasNotFiniteIsKeptWithWhatItAddedTo) {
  const PipelineSpec spec = WithAllThatAccumulates({3, 2});
  auto spoilt = Make(spec);
  ASSERT_TRUE(spoilt->ForwardBackward(Rows(input_, target_ / 0)).ok());
  auto other = Make(spec);
  ASSERT_TRUE(other->ImportState(spoilt->ExportState(true).value(), 0).ok());
  Accumulation accumulation = spoilt->ExportAccumulation().value();
  EXPECT_FALSE(accumulation.loss_finite);
  for (NamedTensor& tensor : accumulation.tensors) {  // by the gradients nothing can be told
    if (tensor.name.starts_with("gradient/")) tensor.tensor.zero_();
  }
  ASSERT_TRUE(other->ImportAccumulation(accumulation).ok());
  EXPECT_EQ(other->OptimizerStep({})->applied, false);
}

TEST_F(KeptState, WhatDoesNotFitIsRefusedAndNothingIsAccumulated) {
  auto pipeline = Make(WithAllThatAccumulates({3, 2}));
  ASSERT_TRUE(pipeline->ForwardBackward(Rows(input_, target_)).ok());
  const Accumulation accumulation = pipeline->ExportAccumulation().value();
  pipeline->DiscardGradients();
  Accumulation unknown = accumulation;
  unknown.tensors.push_back({"gradient/layer9.weight", at::zeros({1})});
  Accumulation larger = accumulation;
  larger.tensors[0].tensor = at::zeros({kWidth, kWidth + 1});
  for (const Accumulation& wrong : {unknown, larger}) {
    EXPECT_EQ(ReasonOf(pipeline->ImportAccumulation(wrong)), "MODEL_MISMATCH");
    EXPECT_FALSE(pipeline->accumulating());
    EXPECT_TRUE(pipeline->ExportAccumulation()->tensors.empty());
  }
}

TEST_F(KeptState, ARestoreReachesEveryCopyOfATiedWeight) {
  auto trained = Make(testing::TiedAroundBatchNorm());
  for (int step = 0; step < 2; ++step) ASSERT_TRUE(trained->TrainStep(Rows(input_, target_), {}).ok());
  auto restored = Make(testing::TiedAroundBatchNorm());
  ASSERT_TRUE(restored->ImportState(trained->ExportState(true).value(), trained->step()).ok());
  // The second stage's copy and its optimizer's slots show in what the next steps do.
  for (int step = 0; step < 2; ++step) {
    const auto want = trained->TrainStep(Rows(input_, target_), {});
    const auto got = restored->TrainStep(Rows(input_, target_), {});
    ASSERT_TRUE(want.ok() && got.ok());
    EXPECT_EQ(*got->loss, *want->loss);
  }
  ExpectSame(restored->ExportState(true).value(), trained->ExportState(true).value());
}

}  // namespace
}  // namespace penstock
