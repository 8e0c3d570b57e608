// Several stages on one lane: where they stand, what is predicted, and what is refused.

#include "engine/plan/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/plan/planner.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMebibyte = 1 << 20;

std::vector<LayerProfile> LikeLayers(int count) {
  LayerProfile layer;
  layer.forward_seconds = 0.001;
  layer.backward_seconds = 0.002;
  layer.output_bytes = kMebibyte;
  layer.stash_bytes = 4 * kMebibyte;
  layer.parameter_bytes = 10 * kMebibyte;
  return std::vector<LayerProfile>(count, layer);
}

PlanRequest Request(const std::string& kind, int chunks, int layers, int devices) {
  PlanRequest request;
  for (int i = 0; i < layers; ++i) request.layers.push_back({"linear", absl::StrCat("layer", i), {}});
  for (int d = 0; d < devices; ++d) request.devices.push_back({absl::StrCat("cpu:", d), {d}, 0});
  request.schedule = {kind, 8, CheckpointMode::kNever};
  request.schedule.chunks = chunks;
  return request;
}

std::vector<int> Lanes(const Plan& plan) {
  std::vector<int> lanes;
  for (const StagePlan& stage : plan.stages) lanes.push_back(stage.lane);
  return lanes;
}

std::vector<std::string> Devices(const Plan& plan) {
  std::vector<std::string> devices;
  for (const StagePlan& stage : plan.stages) devices.push_back(stage.device);
  return devices;
}

void ExpectRefused(const PlanRequest& request, const std::string& field, const std::string& value,
                   const std::string& problem) {
  const absl::Status status = PlanFromProfile(request, LikeLayers(static_cast<int>(request.layers.size()))).status();
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
  EXPECT_EQ(ValuesOf(status)["field"], field) << status;
  EXPECT_EQ(ValuesOf(status)["value"], value) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(field + ": "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(problem));
}

TEST(Lanes, ChunksOfALoopedKindGoRoundTheDevices) {
  const auto plan = PlanFromProfile(Request("interleaved-1f1b", 2, 8, 2), LikeLayers(8));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Lanes(*plan), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(Devices(*plan), ElementsAre("cpu:0", "cpu:1", "cpu:0", "cpu:1"));
  EXPECT_EQ(LaneCount(*plan), 2);
  EXPECT_DOUBLE_EQ(plan->ideal_bubble, 1.0 / 17);
  EXPECT_NEAR(plan->predicted_bubble, 1.0 / 17, 1e-9);
  EXPECT_NEAR(plan->makespan_seconds, 8.5 * 0.012, 1e-9);
  EXPECT_NEAR(plan->stages[2].predicted_bubble, plan->stages[0].predicted_bubble, 1e-12);
}

TEST(Lanes, ChunksOfAVGoToAndFro) {
  PlanRequest request = Request("zbv", 2, 9, 3);
  request.cut.balance = {2, 1, 1, 1, 2, 2};
  const auto plan = PlanFromProfile(request, LikeLayers(9));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Lanes(*plan), ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(Devices(*plan), ElementsAre("cpu:0", "cpu:1", "cpu:2", "cpu:2", "cpu:1", "cpu:0"));
}

// Four stages on two devices.
TEST(Lanes, ImportedListsSayHowManyStagesThereAre) {
  PlanRequest request = Request("imported", 2, 5, 2);
  request.schedule.micro_batches = 1;
  request.schedule.imported =
      std::make_shared<const ImportedSchedule>(*ImportSchedule("0F0,3F0,3I0,0B0,3W0\n1F0,2F0,2B0,1B0\n"));
  const auto plan = PlanFromProfile(request, LikeLayers(5));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Lanes(*plan), ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(plan->why.front(), HasSubstr("4 stages, as many as the imported schedule has"));
  EXPECT_GT(plan->makespan_seconds, 0);
  request.layers.resize(3);
  ExpectRefused(request, "spec.schedule.actions", "4 stages", "must have at most 3 stages, one per layer");
  request = Request("imported", 2, 5, 2);
  request.schedule.imported =
      std::make_shared<const ImportedSchedule>(*ImportSchedule("0F0,3F0,3I0,0B0,3W0\n1F0,2F0,2B0,1B0\n"));
  request.schedule.micro_batches = 1;
  request.cut.balance = {1, 4};
  ExpectRefused(request, "spec.schedule.actions", "4 stages", "must have a list for each of the 2 stages");
  request.cut = {};
  request.cut.stages = 2;
  ExpectRefused(request, "spec.schedule.actions", "4 stages", "must have a list for each of the 2 stages");
}

TEST(Lanes, OneDeviceMayHoldSeveralLanes) {
  PlanRequest request = Request("looped-bfs", 2, 8, 2);
  request.cut.stages = 8;
  const auto plan = PlanFromProfile(request, LikeLayers(8));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Lanes(*plan), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_EQ(plan->stages[6].device, "cpu:0");
}

TEST(Lanes, NamedDevicesAreCountedByLanes) {
  PlanRequest request = Request("interleaved-1f1b", 2, 4, 2);
  request.cut.balance = {1, 1, 1, 1};
  request.devices_named = true;
  EXPECT_TRUE(PlanFromProfile(request, LikeLayers(4)).ok());
  request.devices.pop_back();
  const absl::Status status = PlanFromProfile(request, LikeLayers(4)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(devices: 1, partitions: 2)"));
}

TEST(Lanes, DevicesOfLayersHoldForTheWholeLane) {
  PlanRequest request = Request("interleaved-1f1b", 2, 4, 2);
  request.cut.balance = {1, 1, 1, 1};
  request.layers[2].device = "cpu:1";
  const auto plan = PlanFromProfile(request, LikeLayers(4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(Devices(*plan), ElementsAre("cpu:1", "cpu:1", "cpu:1", "cpu:1"));
  request.layers[0].device = "cpu:0";
  ExpectRefused(request, "spec.schedule.chunks", "2", "puts stages 0 and 2 on one lane");

  request.cut.balance.clear();  // the devices make the stages now
  request.layers[1].device = "cpu:1";
  request.layers[2].device = "cpu:0";
  request.layers[3].device = "cpu:1";
  EXPECT_TRUE(PlanFromProfile(request, LikeLayers(4)).ok());
  request.layers[3].device = "cpu:0";
  ExpectRefused(request, "spec.schedule.chunks", "2", "must divide the number of stages, 3");
}

TEST(Lanes, EveryFieldOfAScheduleThatCanNotBeIsNamed) {
  PlanRequest request = Request("interleaved-1f1b", 3, 4, 2);
  request.cut.balance = {1, 1, 1, 1};
  ExpectRefused(request, "spec.schedule.chunks", "3", "must divide the number of stages, 4");
  request.cut.balance.clear();
  request.cut.stages = 4;
  ExpectRefused(request, "spec.schedule.chunks", "3", "must divide the number of stages, 4");
  request.cut.stages = 0;
  request.schedule.chunks = 5;
  ExpectRefused(request, "spec.schedule.chunks", "5", "the number of layers");
  request.schedule.chunks = 0;
  ExpectRefused(request, "spec.schedule.chunks", "0", "must");
  ExpectRefused(Request("1f1b", 2, 4, 2), "spec.schedule.chunks", "2", "must be 1");
  ExpectRefused(Request("zbv", 1, 4, 2), "spec.schedule.chunks", "1", "must be 2");
  ExpectRefused(Request("none", 1, 4, 2), "spec.schedule.kind", "none", "must be one of");
  ExpectRefused(Request("lag", 1, 4, 2), "spec.schedule.lag", "unset", "must be set");
  request = Request("zb-h1", 1, 4, 2);
  request.schedule.lag = 2;
  ExpectRefused(request, "spec.schedule.lag", "2", "must be unset");
  request = Request("auto", 1, 4, 2);
  request.schedule.live_limit = 0;
  ExpectRefused(request, "spec.schedule.live_limit", "0", "must be at least 1");
  request = Request("dualpipe-v", 2, 8, 2);
  request.schedule.micro_batches = 3;
  ExpectRefused(request, "spec.schedule.micro_batches", "3", "must be at least 4");
  request.schedule.micro_batches = 4;
  EXPECT_TRUE(PlanFromProfile(request, LikeLayers(8)).ok());
}

}  // namespace
}  // namespace penstock
