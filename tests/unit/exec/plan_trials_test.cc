// Searches that try what they list on the devices. Sleeps of `delay` are never early, so that steps have lower bounds.

#include "engine/exec/plan_trials.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"

namespace penstock {
namespace {

PipelineSpec OpenSpec() {
  PipelineSpec spec;
  for (const char* name : {"a", "b", "c", "d"}) {
    spec.model.layers.push_back(
        {"delay", name, {{"forward_ms", 1.0}, {"input_ms", 1.0}, {"weight_ms", 1.0}, {"features", int64_t{4}}}});
  }
  spec.schedule.micro_batches = 4;
  spec.optimizer.name = "sgd";
  spec.loss.name = "mean_squared_error";
  // On two lanes a lag of one is 1F1B: two plans of one prediction, whatever the machine measures. So steps must decide.
  spec.limits.open = {.kind = true};
  spec.limits.kinds = {"1f1b", "lag"};
  return spec;
}

PlanSearch Search(const PipelineSpec& spec, DevicePool::Mode mode, bool rehearse = true) {
  DevicePool pool({{"cpu:0", UsableCores(), 0}, {"cpu:1", UsableCores(), 0}}, mode);
  Pipeline::Options options;
  options.devices = &pool;
  options.profile = {.rows = 2, .repeats = 5};
  options.rehearse = rehearse;
  absl::StatusOr<PlanSearch> search = Pipeline::SearchPlans(spec, options);
  EXPECT_TRUE(search.ok()) << search.status();
  return search.ok() ? *std::move(search) : PlanSearch();
}

TEST(PlanTrials, TheBestOfASearchHaveRun) {
  const PlanSearch search = Search(OpenSpec(), DevicePool::Mode::kThreads);
  ASSERT_GE(search.candidates.size(), 2u);
  ASSERT_TRUE(search.candidates[0].rehearsed_seconds.has_value());
  ASSERT_TRUE(search.candidates[1].rehearsed_seconds.has_value());
  EXPECT_GE(*search.candidates[0].rehearsed_seconds, 24e-3)
      << "two devices, four micro-batches through four layers of 3 ms";
  EXPECT_LE(*search.candidates[0].rehearsed_seconds, *search.candidates[1].rehearsed_seconds);
  ASSERT_TRUE(search.plan.has_value());
  EXPECT_EQ(search.plan->schedule.kind, search.candidates[0].schedule.kind);
  EXPECT_EQ(search.plan->schedule.chunks, search.candidates[0].schedule.chunks);
}

TEST(PlanTrials, WithoutALossStagesAreMeasuredButNoStepRuns) {
  PipelineSpec spec = OpenSpec();
  spec.loss.name.clear();
  const PlanSearch search = Search(spec, DevicePool::Mode::kThreads);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_TRUE(search.candidates[0].confirmed);
  EXPECT_FALSE(search.candidates[0].rehearsed_seconds.has_value());
}

TEST(PlanTrials, StepsRunOnlyWhereTheyAreAllowed) {
  const PlanSearch search = Search(OpenSpec(), DevicePool::Mode::kThreads, /*rehearse=*/false);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_TRUE(search.candidates[0].confirmed);
  EXPECT_FALSE(search.candidates[0].rehearsed_seconds.has_value());
}

TEST(PlanTrials, TheMadeUpTargetSuitsALossOfProbabilities) {
  PipelineSpec spec = OpenSpec();
  spec.loss.name = "binary_cross_entropy";
  const PlanSearch search = Search(spec, DevicePool::Mode::kThreads);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_TRUE(search.candidates[0].rehearsed_seconds.has_value());
}

TEST(PlanTrials, ASerialPoolTriesNothing) {
  const PlanSearch search = Search(OpenSpec(), DevicePool::Mode::kSerial);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_FALSE(search.candidates[0].confirmed);
  EXPECT_FALSE(search.candidates[0].rehearsed_seconds.has_value());
}

}  // namespace
}  // namespace penstock
