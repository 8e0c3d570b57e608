#include "engine/plan/confirm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/plan/planner.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// Eight layers of 1 ms forward, input and weight gradient on two devices; every kind and up to four chunks are open.
PlanRequest Request() {
  PlanRequest request;
  for (int i = 0; i < 8; ++i) request.layers.push_back({"linear", "layer" + std::to_string(i), {}});
  for (int d = 0; d < 2; ++d) request.devices.push_back({"cpu:" + std::to_string(d), {d}, 0});
  request.schedule = {"1f1b", 4, CheckpointMode::kNever};
  request.limits.open = {.kind = true, .chunks = true};
  return request;
}

SizeProfile Profile() {
  LayerProfile layer;
  layer.forward_seconds = layer.input_gradient_seconds = layer.weight_gradient_seconds = 1e-3;
  layer.backward_seconds = 2e-3;
  layer.output_bytes = layer.stash_bytes = layer.parameter_bytes = 1 << 10;
  return SizeProfile(std::vector<LayerProfile>(8, layer));
}

// Stages take `factor` times what their layers sum up to.
Plan Slower(Plan plan, double factor) {
  for (StagePlan& stage : plan.stages) {
    stage.forward_seconds *= factor;
    stage.backward_seconds *= factor;
    stage.input_gradient_seconds *= factor;
    stage.weight_gradient_seconds *= factor;
    stage.recompute_seconds *= factor;
  }
  EXPECT_TRUE(PredictPlan(plan).ok());
  return plan;
}

PlanSearch Search(const MeasureStages& measure) {
  absl::StatusOr<PlanSearch> search = PlanBySearch(Request(), Profile(), EndlessPlanning(), {.measure = measure});
  EXPECT_TRUE(search.ok()) << search.status();
  return search.ok() ? *std::move(search) : PlanSearch();
}

TEST(Confirm, ThePlanWhoseStagesAreFastestComesFirst) {
  const PlanSearch before = Search({});
  ASSERT_GT(before.candidates.front().schedule.chunks, 1) << "chunks pay, by the layers";
  EXPECT_FALSE(before.candidates.front().confirmed);
  // Chunks take twice what their layers say.
  const PlanSearch after = Search([](Plan plan) { return Slower(plan, plan.schedule.chunks > 1 ? 2 : 1); });
  EXPECT_EQ(after.candidates.front().schedule.chunks, 1);
  EXPECT_TRUE(after.candidates.front().confirmed);
  ASSERT_TRUE(after.plan.has_value());
  EXPECT_EQ(after.plan->schedule.kind, after.candidates.front().schedule.kind);
  EXPECT_EQ(after.plan->schedule.chunks, 1);
  EXPECT_EQ(after.plan->makespan_seconds, after.candidates.front().makespan_seconds);
  EXPECT_EQ(after.candidates.size(), before.candidates.size());
}

TEST(Confirm, ConfirmedOnesAreListedFirstAndInOrder) {
  const PlanSearch search = Search([](Plan plan) { return Slower(plan, plan.schedule.chunks > 2 ? 2 : 1); });
  bool open = false;
  double last = 0;
  for (const PlanCandidate& one : search.candidates) {
    EXPECT_FALSE(open && one.confirmed);
    if (open |= !one.confirmed; open) continue;
    EXPECT_GE(one.makespan_seconds, last);
    last = one.makespan_seconds;
  }
  EXPECT_GT(last, 0);
}

TEST(Confirm, EqualStagesAreMeasuredOnceAndNoMoreThanTheMost) {
  std::vector<std::pair<int, bool>> measured;  // chunks, halves
  Search([&](Plan plan) {
    measured.emplace_back(plan.schedule.chunks, SplitsBackward(plan));
    return plan;
  });
  EXPECT_LE(measured.size(), static_cast<size_t>(kMaxMeasured));
  for (size_t i = 0; i < measured.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(measured[i], measured[j]);
  }
}

TEST(Confirm, APlanThatCannotBeMeasuredIsRefused) {
  const PlanSearch before = Search({});
  const PlanSearch search = Search([](Plan plan) -> absl::StatusOr<Plan> {
    if (plan.schedule.chunks > 1)
      return Error(absl::StatusCode::kResourceExhausted, "NO_MEMORY", "no memory for chunks");
    return plan;
  });
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_EQ(search.candidates.front().schedule.chunks, 1);
  ASSERT_GT(search.refused.size(), before.refused.size());
  EXPECT_THAT(std::string(search.refused.back().why.message()), HasSubstr("no memory for chunks"));
}

TEST(Confirm, NothingIsMeasuredWhenTheTimeIsUp) {
  const absl::StatusOr<PlanSearch> found = SearchPlans(Request(), Profile(), {});
  ASSERT_TRUE(found.ok()) << found.status();
  PlanSearch search = *found;
  const auto measure = [](Plan) -> absl::StatusOr<Plan> {
    ADD_FAILURE() << "measured";
    return absl::InternalError("");
  };
  ASSERT_TRUE(ConfirmBest(
                  Request(), Profile(), measure, [] { return true; }, search)
                  .ok());
  EXPECT_EQ(search.candidates.size(), found->candidates.size());
  EXPECT_FALSE(search.plan.has_value());
}

// Measures for a second each, on a clock of its own.
struct TimedMeasurements {
  testing::FakeClock clock;
  int count = 0;

  MeasureStages Measure() {
    return [this](Plan plan) {
      ++count;
      clock.Advance(absl::Seconds(1));
      return Slower(std::move(plan), 1.0 + count * 0.01);
    };
  }
};

TEST(Confirm, WhenTheTimeIsOverTheBestOfThoseMeasuredIsThePlan) {
  TimedMeasurements measurements;
  Planning planning(&measurements.clock, 4);
  const auto search = PlanBySearch(Request(), Profile(), &planning, {.measure = measurements.Measure()});
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_EQ(measurements.count, 3) << "three quarters of the time";
  EXPECT_FALSE(search->complete);
  EXPECT_TRUE(search->candidates.front().confirmed);
  EXPECT_FALSE(search->candidates.back().confirmed);
  ASSERT_TRUE(search->plan.has_value());
  EXPECT_EQ(search->plan->schedule.kind, search->candidates.front().schedule.kind);
  EXPECT_EQ(planning.progress().phase, PlanPhase::kConfirming);
  EXPECT_DOUBLE_EQ(planning.progress().done, 0.5 + 0.25 * 3 / kMaxMeasured);
}

TEST(Confirm, APlanThatNobodyWantsIsMeasuredNoFurther) {
  TimedMeasurements measurements;
  Planning planning(&measurements.clock, 100, [&] { return measurements.count == 2; });
  const auto search = PlanBySearch(Request(), Profile(), &planning, {.measure = measurements.Measure()});
  EXPECT_EQ(ReasonOf(search.status()), "WORK_CANCELLED");
  EXPECT_EQ(measurements.count, 2);
}

}  // namespace
}  // namespace penstock
