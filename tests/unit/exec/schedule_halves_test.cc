// Forward and Backward apart, of every kind of schedule, against the plain loop.

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/plan/planner.h"
#include "engine/tensor/micro_batch.h"
#include "tests/unit/exec/function_layers.h"
#include "tests/unit/exec/schedule_cases.h"

namespace penstock::testing {
namespace {

constexpr int kHalvesMicroBatches = 5;
constexpr int64_t kRows = 3 * kHalvesMicroBatches;

TEST(ScheduleHalves, EveryKindGivesThePlainLoopsGradientsInTwoCalls) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({kRows, kCaseWidth});
  const at::Tensor gradient = at::randn({kRows, kCaseWidth});
  for (const DevicePool::Mode threads : {DevicePool::Mode::kSerial, DevicePool::Mode::kThreads}) {
    PipeWorld world(threads);
    const int most = threads == DevicePool::Mode::kSerial ? 3 : 2;
    for (const ScheduleCase& one : ScheduleCases(most, most)) {
      for (const CheckpointMode mode : kAllModes) {
        SCOPED_TRACE(absl::StrCat(Describe(one), ", ", std::string(CheckpointModeName(mode))));
        const PipelineSpec spec = SpecOf(one, one.min_micro_batches, mode);
        auto pipeline = world.Make(spec);
        PlainReference plain = PlainOf(spec);
        for (int step = 0; step < 2; ++step) {
          ForwardRequest request = Ask(Input(x), /*input_gradients=*/true);
          request.micro_batches = kHalvesMicroBatches;
          const auto forward = pipeline->Forward(request);
          ASSERT_TRUE(forward.ok()) << forward.status();
          const auto backward =
              pipeline->Backward(forward->graph, {{forward->outputs[0].name, gradient}}, /*retain_graph=*/step == 0);
          ASSERT_TRUE(backward.ok()) << backward.status();
          EXPECT_EQ(backward->input_gradients.size(), 1);

          const at::Tensor leaf = x.detach().requires_grad_(true);
          const std::vector<Batch> outputs = plain.Forward({Value(leaf)}, kHalvesMicroBatches);
          for (int m = 0; m < kHalvesMicroBatches; ++m) {
            torch::autograd::backward({outputs[m].TensorAt(0)}, {gradient.narrow(0, m * 3, 3)});
          }
          EXPECT_TRUE(at::equal(*backward->input_gradients[0].value.tensor(), leaf.grad()));
          const auto applied = pipeline->OptimizerStep({});
          ASSERT_TRUE(applied.ok()) << applied.status();
          EXPECT_EQ(*applied->gradient_norm, plain.Step().gradient_norm);
          EXPECT_TRUE(SameState(*pipeline, plain));
        }
      }
    }
  }
}

// A data set's last mini-batch is often a small one.
TEST(ScheduleHalves, DualPipeTrainsWithFewerMicroBatchesThanItIsMadeFor) {
  PipeWorld world;
  const ScheduleCase one = {.kind = "dualpipe-v", .lanes = 2, .chunks = 2};
  ASSERT_FALSE(world.TryMake(SpecOf(one, 3, CheckpointMode::kNever)).ok());  // it needs two per lane
  const PipelineSpec spec = SpecOf(one, 4, CheckpointMode::kNever);
  auto pipeline = world.Make(spec);
  PlainReference plain = PlainOf(spec);
  for (const int rows : {8, 3, 1, 8}) {
    const at::Tensor x = Range({rows, kCaseWidth});
    const auto step = pipeline->TrainStep(Contribution(x, x), {});
    ASSERT_TRUE(step.ok()) << rows << step.status();
    EXPECT_EQ(step->micro_batches, std::min(rows, 4));
    EXPECT_EQ(*step->loss, plain.TrainStep({Value(x)}, x, 4).loss);
    EXPECT_TRUE(SameState(*pipeline, plain)) << rows;
  }
}

}  // namespace
}  // namespace penstock::testing
