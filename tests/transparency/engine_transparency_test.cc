// The promise: whatever the cut, schedule, checkpoint mode and number of devices, training equals the plain loop, bit
// for bit, on the same micro-batches.

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "tests/transparency/transparency_cases.h"

namespace penstock::testing {
namespace {

class EngineTransparency : public ::testing::TestWithParam<DevicePool::Mode> {
 protected:
  static Pipeline::Options OptionsFor(DevicePool& pool) {
    Pipeline::Options options;
    options.devices = &pool;
    options.profile.rows = 2;
    options.profile.repeats = 1;
    return options;
  }
};

TEST_P(EngineTransparency, TenStepsEqualThePlainLoop) {
  DevicePool pool({{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, GetParam());
  for (const TransparencyCase& one : AllTransparencyCases()) {
    SCOPED_TRACE(Describe(one));
    const PlainRun& plain = PlainRunOf(one.model, one.micro_batches);
    auto pipeline = Pipeline::Create(SpecOf(one), OptionsFor(pool));
    ASSERT_TRUE(pipeline.ok()) << pipeline.status();
    ASSERT_EQ((*pipeline)->plan().stages.size(), one.stages);
    for (int step = 0; step < kTransparencySteps; ++step) {
      const TransparencyBatch batch = BatchOf(one.model, step);
      ContributionRequest request;
      request.inputs = batch.inputs;
      request.target = batch.target;
      auto outcome = (*pipeline)->TrainStep(request, {});
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      ASSERT_EQ(outcome->loss, plain.steps[step].loss) << "step " << step;
      ASSERT_EQ(outcome->gradient_norm, plain.steps[step].gradient_norm) << "step " << step;
      ASSERT_EQ(outcome->learning_rate, plain.steps[step].learning_rate) << "step " << step;
      ASSERT_EQ(outcome->applied, true);
    }
    const NamedTensors parameters = (*pipeline)->ExportState(false).value();
    ASSERT_EQ(parameters.size(), plain.parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      ASSERT_EQ(parameters[i].name, plain.parameters[i].name);
      ASSERT_TRUE(at::equal(parameters[i].tensor, plain.parameters[i].tensor)) << parameters[i].name;
    }
    absl::Notification done;
    (*pipeline)->InferAsync(
        {.inputs = BatchOf(one.model, 0).inputs, .micro_batches = {}, .outputs = {}, .cancel = {}},
        [&](absl::StatusOr<ForwardOutcome> outcome) {
          EXPECT_TRUE(outcome.ok() && at::equal(*outcome->outputs[0].value.tensor(), plain.inference));
          done.Notify();
        });
    pool.Wait(done);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineTransparency,
                         ::testing::Values(DevicePool::Mode::kSerial, DevicePool::Mode::kThreads),
                         [](const auto& info) {
                           return info.param == DevicePool::Mode::kSerial ? "Serial" : "Threads";
                         });

}  // namespace
}  // namespace penstock::testing
