// What calibration measures. Sleeps of `delay` are never early, so that costs have lower bounds.

#include "engine/exec/calibrate.h"

#include <gtest/gtest.h>

#include "engine/base/thread.h"
#include "tests/unit/exec/stage_chain.h"

namespace penstock {
namespace {

using testing::StageChain;

Plan Calibrated(const std::string& kind) {
  ModelSpec model;
  for (const char* name : {"a", "b"}) {
    model.layers.push_back(
        {"delay", name, {{"forward_ms", 1.0}, {"input_ms", 2.0}, {"weight_ms", 3.0}, {"features", int64_t{4}}}});
  }
  StageChain chain({.model = model, .first_layers = {0, 1}});
  Plan plan;
  plan.schedule.kind = kind;
  plan.schedule.micro_batches = 4;
  plan.stages.resize(2);
  plan.stages[1].lane = 1;
  const Device device = {.name = "cpu:0", .cores = UsableCores()};
  const absl::Status done = CalibrateStages(chain.stages(), {device, device}, {{"input", DataType::kFp32, {-1, 4}}},
                                            LossContext(), {.rows = 2, .repeats = 2}, 1, RealClock(), plan);
  EXPECT_TRUE(done.ok()) << done;
  for (size_t s = 0; s < chain.size(); ++s) {
    for (const NamedTensor& parameter : chain.stage(s).parameters()) EXPECT_FALSE(parameter.tensor.grad().defined());
  }
  return plan;
}

TEST(Calibrate, MeasuresTheHalvesOfSchedulesThatSplit) {
  const Plan plan = Calibrated("zb-h1");
  for (const StagePlan& stage : plan.stages) {
    EXPECT_GE(stage.forward_seconds, 1e-3);
    EXPECT_GE(stage.recompute_seconds, 1e-3);
    EXPECT_GE(stage.backward_seconds, 5e-3);
  }
  EXPECT_GE(plan.stages[1].input_gradient_seconds, 2e-3);
  EXPECT_GE(plan.stages[1].weight_gradient_seconds, 3e-3);
  EXPECT_GE(plan.stages[0].weight_gradient_seconds, 5e-3);  // all of it: the model's input asks for no gradient
  EXPECT_GT(plan.makespan_seconds, 0);
}

TEST(Calibrate, MeasuresNoHalvesOfOthers) {
  const Plan plan = Calibrated("1f1b");
  for (const StagePlan& stage : plan.stages) {
    EXPECT_GE(stage.forward_seconds, 1e-3);
    EXPECT_GE(stage.backward_seconds, 5e-3);
    EXPECT_EQ(stage.input_gradient_seconds, 0);
    EXPECT_EQ(stage.weight_gradient_seconds, 0);
  }
  EXPECT_GE(plan.makespan_seconds, 4 * 6e-3);
}

}  // namespace
}  // namespace penstock
