// What calibration measures. Sleeps of `delay` are never early, so that costs have lower bounds.

#include "engine/exec/calibrate.h"

#include <gtest/gtest.h>

#include <atomic>

#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/exec/stage_chain.h"

namespace penstock {
namespace {

using testing::StageChain;

// Two stages of a layer each.
absl::Status CalibrateTwo(const ProfileOptions& options, const std::string& kind, StageChain& chain, Plan& plan) {
  plan.schedule.kind = kind;
  plan.schedule.micro_batches = 4;
  plan.stages.resize(2);
  plan.stages[1].lane = 1;
  const Device device = {.name = "cpu:0", .cores = UsableCores()};
  return CalibrateStages(chain.stages(), {device, device}, {{"input", DataType::kFp32, {-1, 4}}}, LossContext(),
                         options, 1, RealClock(), plan);
}

ModelSpec TwoDelays() {
  ModelSpec model;
  for (const char* name : {"a", "b"}) {
    model.layers.push_back(
        {"delay", name, {{"forward_ms", 1.0}, {"input_ms", 2.0}, {"weight_ms", 3.0}, {"features", int64_t{4}}}});
  }
  return model;
}

Plan Calibrated(const std::string& kind) {
  StageChain chain({.model = TwoDelays(), .first_layers = {0, 1}});
  Plan plan;
  const absl::Status done = CalibrateTwo({.rows = 2, .repeats = 2}, kind, chain, plan);
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

TEST(Calibrate, WhenTheTimeIsOverOneRepeatIsEnough) {
  testing::FakeClock clock;
  Planning planning(&clock, 1);
  planning.Enter(PlanPhase::kBuilding, 1);
  clock.Advance(absl::Seconds(2));
  StageChain chain({.model = TwoDelays(), .first_layers = {0, 1}});
  Plan plan;
  // More repeats than anybody waits for.
  const ProfileOptions options = {
      .rows = 2, .repeats = 1 << 30, .budget_nanos = int64_t{1} << 60, .planning = &planning};
  ASSERT_TRUE(CalibrateTwo(options, "1f1b", chain, plan).ok());
  EXPECT_GE(plan.stages[0].forward_seconds, 1e-3);
  EXPECT_GE(plan.stages[1].backward_seconds, 5e-3);
}

TEST(Calibrate, WhatNobodyWantsIsMeasuredNoFurther) {
  testing::FakeClock clock;
  std::atomic<int> asked = 0;
  // Given up while the first stage is measured.
  Planning planning(&clock, 1, [&] { return ++asked > 1; });
  StageChain chain({.model = TwoDelays(), .first_layers = {0, 1}});
  Plan plan;
  const ProfileOptions options = {
      .rows = 2, .repeats = 1 << 30, .budget_nanos = int64_t{1} << 60, .planning = &planning};
  EXPECT_EQ(ReasonOf(CalibrateTwo(options, "1f1b", chain, plan)), "WORK_CANCELLED");
  EXPECT_EQ(plan.stages[0].forward_seconds, 0) << "the plan is as before";
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
