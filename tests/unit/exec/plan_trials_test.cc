// Searches that try what they list on the devices. Sleeps of `delay` are never early, so that steps have lower bounds.

#include "engine/exec/plan_trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"
#include "engine/plan/rehearse.h"

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
  spec.limits.open = {.kind = true, .chunks = true};
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

// Whether there are two that are near enough to each other to be run. What is near enough was measured, on a machine
// that may be busy.
bool WorthRehearsing(const PlanSearch& search) {
  std::vector<double> confirmed;
  for (const PlanCandidate& one : search.candidates) {
    if (one.confirmed) confirmed.push_back(one.makespan_seconds);
  }
  if (confirmed.empty()) return false;
  const double worth = kWorthRehearsing * *std::min_element(confirmed.begin(), confirmed.end());
  return std::count_if(confirmed.begin(), confirmed.end(), [worth](double one) { return one <= worth; }) > 1;
}

TEST(PlanTrials, TheBestOfASearchHaveRun) {
  const PlanSearch search = Search(OpenSpec(), DevicePool::Mode::kThreads);
  ASSERT_GE(search.candidates.size(), 2u);
  EXPECT_EQ(search.candidates[0].rehearsed_seconds.has_value(), WorthRehearsing(search));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const double first = search.candidates[0].rehearsed_seconds.value_or(kNever);
  EXPECT_GE(first, 24e-3) << "two devices, four micro-batches through four layers of 3 ms";
  EXPECT_LE(first, search.candidates[1].rehearsed_seconds.value_or(kNever));
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
  EXPECT_EQ(search.candidates[0].rehearsed_seconds.has_value(), WorthRehearsing(search));
}

TEST(PlanTrials, ASerialPoolTriesNothing) {
  const PlanSearch search = Search(OpenSpec(), DevicePool::Mode::kSerial);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_FALSE(search.candidates[0].confirmed);
  EXPECT_FALSE(search.candidates[0].rehearsed_seconds.has_value());
}

}  // namespace
}  // namespace penstock
