#include "engine/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/device.h"
#include "engine/plan/search_space.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMiB = 1 << 20;

std::vector<LayerProfile> EqualLayers(int count) {
  LayerProfile layer;
  layer.forward_seconds = 0.001;
  layer.backward_seconds = 0.002;
  layer.output_bytes = kMiB;
  layer.stash_bytes = 4 * kMiB;
  layer.parameter_bytes = 10 * kMiB;
  return std::vector<LayerProfile>(count, layer);
}

PlanRequest Request(int layers, int devices) {
  PlanRequest request;
  for (int i = 0; i < layers; ++i) request.layers.push_back({"linear", "layer" + std::to_string(i), {}});
  for (int d = 0; d < devices; ++d) request.devices.push_back({"cpu:" + std::to_string(d), {d}, 0});
  request.schedule = {"1f1b", 8, CheckpointMode::kNever};
  return request;
}

TEST(Planner, CutsEvenlyAndPredictsTheTextbookBubble) {
  auto plan = PlanFromProfile(Request(4, 2), EqualLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->stages.size(), 2);
  EXPECT_EQ(plan->stages[0].layers.size(), 2);
  EXPECT_EQ(plan->stages[1].first_layer, 2);
  EXPECT_EQ(plan->stages[1].device, "cpu:1");
  EXPECT_DOUBLE_EQ(plan->ideal_bubble, 1.0 / 9);
  EXPECT_NEAR(plan->predicted_bubble, 1.0 / 9, 1e-9);
  EXPECT_NEAR(plan->makespan_seconds, 9 * 0.006, 1e-9);
  EXPECT_EQ(plan->stages[0].input_bytes, 0);
  EXPECT_EQ(plan->stages[1].input_bytes, kMiB);
  // 1F1B: stage 0 holds two micro-batches, stage 1 one.
  EXPECT_EQ(plan->stages[0].peak_activation_bytes, 2 * 2 * 4 * kMiB);
  EXPECT_EQ(plan->stages[1].peak_activation_bytes, 1 * 2 * 4 * kMiB);
}

// What nobody has measured does not decide: an `auto` of costs 0 would be any schedule, and a zbv would be fused.
TEST(Planner, ListsOfUnmeasuredStagesAreThoseOfEqualCosts) {
  Plan plan;
  plan.schedule = {.kind = "auto", .micro_batches = 8, .checkpoint = CheckpointMode::kNever};
  for (int s = 0; s < 4; ++s) plan.stages.push_back({.lane = s});
  EXPECT_TRUE(BuildRequestOf(plan).costs.stages.empty());
  ASSERT_TRUE(PredictPlan(plan).ok());
  EXPECT_EQ(plan.makespan_seconds, 0);
  plan.stages[0].backward_seconds = 1;
  EXPECT_EQ(BuildRequestOf(plan).costs.stages.size(), 4);
}

TEST(Planner, PutsStagesOnDevicesInTurn) {
  PlanRequest request = Request(4, 2);
  request.cut.stages = 4;
  auto plan = PlanFromProfile(request, EqualLayers(4));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->stages[2].device, "cpu:0");
  EXPECT_EQ(plan->stages[3].device, "cpu:1");
}

TEST(Planner, NamesTheFieldOfABadSchedule) {
  PlanRequest request = Request(4, 2);
  request.schedule.kind = "forward-only";
  EXPECT_EQ(ValuesOf(PlanFromProfile(request, EqualLayers(4)).status())["field"], "spec.schedule.kind");
  request.schedule.kind = "1f1b";
  request.schedule.micro_batches = 1 << 20;
  EXPECT_EQ(ValuesOf(PlanFromProfile(request, EqualLayers(4)).status())["field"], "spec.schedule.micro_batches");
}

TEST(Planner, RefusesWhatDoesNotFitNamingDeviceAndLargestClass) {
  PlanRequest request = Request(4, 2);
  request.cut.balance = {2, 2};
  request.devices[1].memory_limit_bytes = 50 * kMiB;  // needs 20 + 20 + 40 of state alone
  absl::Status status = PlanFromProfile(request, EqualLayers(4)).status();
  EXPECT_EQ(ReasonOf(status), "PLAN_DOES_NOT_FIT");
  EXPECT_EQ(ValuesOf(status)["device"], "cpu:1");
  EXPECT_NE(std::string(status.message()).find("optimizer state"), std::string::npos);
  request.devices[1].memory_limit_bytes = 100 * kMiB;
  EXPECT_TRUE(PlanFromProfile(request, EqualLayers(4)).ok());
}

// Weights and the optimizer's state, twice: copies to undo a step have a place only where they fit beside everything
// else.
TEST(Planner, KeepsRoomForAnUndoWhereThereIsSome) {
  PlanRequest request = Request(4, 2);
  request.cut.balance = {2, 2};
  request.optimizer_state_ratio = 2;
  auto plan = PlanFromProfile(request, EqualLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->undo);
  for (const StagePlan& stage : plan->stages) EXPECT_EQ(stage.undo_bytes, 60 * kMiB);
  EXPECT_THAT(plan->why, Contains(HasSubstr(absl::StrCat("Undo: stages copy the ", 120 * kMiB, " bytes"))));
  // 80 of state, 8 of activations, one received input and gradients of outputs: less than 100, and 60 more do not fit.
  request.devices[1].memory_limit_bytes = 100 * kMiB;
  plan = PlanFromProfile(request, EqualLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(plan->undo);
  for (const StagePlan& stage : plan->stages) EXPECT_EQ(stage.undo_bytes, 0);
  EXPECT_THAT(plan->why, Contains(HasSubstr("No undo: a step that fails half-way needs a restore")));
  request.devices[1].memory_limit_bytes = 160 * kMiB;
  EXPECT_TRUE(PlanFromProfile(request, EqualLayers(4))->undo);
  // The host is one, however many devices it is divided into.
  request.devices[1].memory_limit_bytes = 0;
  std::vector<LayerProfile> huge = EqualLayers(4);
  for (LayerProfile& layer : huge) layer.parameter_bytes = MachineMemoryBytes() / 20;
  EXPECT_FALSE(PlanFromProfile(request, huge)->undo);
}

TEST(Planner, CutsWithinTheMemoryOfTheDevices) {
  PlanRequest request = Request(4, 2);
  request.devices[1].memory_limit_bytes = 50 * kMiB;  // one layer: 40 of state, 4 of activations
  auto plan = PlanFromProfile(request, EqualLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].layers.size(), 3);
  EXPECT_THAT(plan->why, Contains(HasSubstr("memory limits")));
  request.devices[1].memory_limit_bytes = 100 * kMiB;
  plan = PlanFromProfile(request, EqualLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].layers.size(), 2);
  EXPECT_THAT(plan->why, Not(Contains(HasSubstr("memory limits"))));
  request.devices[1].memory_limit_bytes = 40 * kMiB;  // no cut fits: the best one says what is missing
  EXPECT_EQ(ReasonOf(PlanFromProfile(request, EqualLayers(4)).status()), "PLAN_DOES_NOT_FIT");
}

TEST(Planner, CountsTheBytesBetweenStages) {
  PlanRequest request = Request(4, 2);
  std::vector<LayerProfile> profile = EqualLayers(4);
  profile[0].output_bytes = profile[2].output_bytes = 1000;
  auto plan = PlanFromProfile(request, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].layers.size(), 2);  // time alone: even
  EXPECT_EQ(plan->hop_seconds, 0);
  request.bytes_per_second = 2.0 * kMiB / 0.004;  // what the middle layer hands over takes 4 ms there and back
  plan = PlanFromProfile(request, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].layers.size(), 3);  // 9 ms beside 3, instead of 6 beside 10
  EXPECT_DOUBLE_EQ(plan->hop_seconds, 1000 / request.bytes_per_second);
}

TEST(Planner, AHopTakesWhatTheLargestMessageTakes) {
  PlanRequest request = Request(3, 3);
  std::vector<LayerProfile> profile = EqualLayers(3);
  profile[0].output_bytes = 3000;
  profile[1].output_bytes = 1000;
  request.bytes_per_second = 1e12;
  const auto plan = PlanFromProfile(request, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_DOUBLE_EQ(plan->hop_seconds, 3000 / 1e12);
}

TEST(Planner, NamesTheSkipsThatCrossWithTheirBytes) {
  PlanRequest request = Request(4, 2);
  const SkipName far = {"outer", "x"};
  const SkipName inner = {"", "x"};
  request.skips = {{{far, inner}, {}}, {{}, {inner}}, {}, {{}, {far}}};
  std::vector<LayerProfile> profile = EqualLayers(4);
  profile[0].skip_bytes = {{far, 500}, {inner, 70}};
  auto plan = PlanFromProfile(request, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const SkipRoute route = {.edge = {0, 1}, .names = {far}, .bytes = 500};
  EXPECT_THAT(plan->skips, ElementsAre(route));
  EXPECT_EQ(plan->stages[1].input_bytes, kMiB + 500);
  EXPECT_THAT(plan->why,
              Contains("Skip outer/x goes straight from stage 0 to stage 1, 500 bytes per micro-batch of the "
                       "measurement."));
}

TEST(Planner, SaysWhatEveryLayerCosts) {
  PlanRequest request = Request(4, 2);
  std::vector<LayerProfile> profile = EqualLayers(4);
  profile[3].stash_bytes = 123;
  profile[3].forward_seconds = 0.0015;
  auto plan = PlanFromProfile(request, profile);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->layers.size(), 4);
  EXPECT_EQ(plan->layers[1].stage, 0);
  EXPECT_EQ(plan->layers[3].name, "layer3");
  EXPECT_EQ(plan->layers[3].stage, 1);
  EXPECT_EQ(plan->layers[3].forward_seconds, 0.0015);
  EXPECT_EQ(plan->layers[3].backward_seconds, 0.002);
  EXPECT_EQ(plan->layers[3].stash_bytes, 123);
  EXPECT_EQ(plan->layers[3].parameter_bytes, 10 * kMiB);
  EXPECT_EQ(plan->layers[3].output_bytes, kMiB);
  EXPECT_DOUBLE_EQ(plan->layers[3].cost, 3500);  // microseconds
}

TEST(Planner, RefusesAModelBeyondAllDevicesBeforeItMeasuresAnything) {
  PlanRequest request = Request(2, 2);
  request.parameter_bytes = {int64_t{1} << 50, int64_t{1} << 50};
  absl::Status status = MakePlan(request, {}, RealClock()).status();
  EXPECT_EQ(ReasonOf(status), "PLAN_DOES_NOT_FIT");
  EXPECT_EQ(ValuesOf(status)["field"], "spec.model");
  request.parameter_bytes = {100, 100};
  for (Device& device : request.devices) device.memory_limit_bytes = 300;  // 800 bytes of state
  EXPECT_EQ(ReasonOf(MakePlan(request, {}, RealClock()).status()), "PLAN_DOES_NOT_FIT");
}

TEST(Planner, WithNoPlanAtAllThePlannerChooses) {
  PlanRequest request = Request(0, 2);
  auto layers = ExpandModel({"mlp", {{"layers", int64_t{6}}, {"width", int64_t{64}}}, {}});
  ASSERT_TRUE(layers.ok()) << layers.status();
  request.layers = *layers;
  request.limits.open = {true, true, true, true};
  auto plan = MakePlan(request, {.rows = 4, .repeats = 2}, RealClock());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->micro_batch_rows * plan->schedule.micro_batches, kDefaultMiniBatchRows);
  EXPECT_EQ(LaneCount(*plan), 2);
  EXPECT_THAT(plan->why, Contains(HasSubstr("is predicted to be the best")));
  EXPECT_GT(plan->layers[1].weight_gradient_seconds, 0);
  EXPECT_GT(plan->makespan_seconds, 0);
}

TEST(Planner, MeasuresTheSizesThatItChoosesFrom) {
  PlanRequest request = Request(4, 2);
  const auto rows = [&] { return RowsToMeasure(request, 4); };
  EXPECT_THAT(rows(), ElementsAre(4));  // nothing says how large a mini-batch is
  request.limits.mini_batch_rows = 64;
  EXPECT_THAT(rows(), ElementsAre(8));  // in 8 micro-batches
  request.limits.open.micro_batches = true;
  EXPECT_THAT(rows(), ElementsAre(1, 6, 32));  // up to 64 of them; fewer than 2 leave a device idle
  request.limits.micro_batches = {8, 16};
  EXPECT_THAT(rows(), ElementsAre(4, 8));
  EXPECT_EQ(MicroBatchRows(request.limits, 24), 3);
}

TEST(Planner, ProfilesARealModelAndCutsItByTime) {
  PlanRequest request = Request(0, 2);
  auto layers = ExpandModel({"mlp", {{"layers", int64_t{4}}, {"width", int64_t{64}}}, {}});
  ASSERT_TRUE(layers.ok()) << layers.status();
  request.layers = *layers;
  auto plan = MakePlan(request, {.rows = 4, .repeats = 2}, RealClock());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->stages.size(), 2);
  for (const StagePlan& stage : plan->stages) {
    EXPECT_GT(stage.forward_seconds, 0);
    EXPECT_GT(stage.backward_seconds, 0);
    EXPECT_GT(stage.stash_bytes, 0);
    EXPECT_GT(stage.parameter_bytes, 0);
  }
}

}  // namespace
}  // namespace penstock
