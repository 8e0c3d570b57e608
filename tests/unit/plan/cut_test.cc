#include "engine/plan/cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/plan/planner.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerSpec Layer(const std::string& name, const std::string& device = "") {
  return {.kind = "relu", .name = name, .options = {}, .device = device};
}

PlanRequest Request(int layers, const std::vector<std::string>& devices) {
  PlanRequest request;
  for (int i = 0; i < layers; ++i) request.layers.push_back(Layer("layer" + std::to_string(i)));
  for (const std::string& device : devices) request.devices.push_back({device, {0}, 0});
  request.schedule = {"1f1b", 4, CheckpointMode::kNever};
  return request;
}

std::vector<LayerProfile> LayersOfTime(const std::vector<double>& milliseconds) {
  std::vector<LayerProfile> profile;
  for (double time : milliseconds) {
    LayerProfile layer;
    layer.backward_seconds = time * 1e-3;
    profile.push_back(layer);
  }
  return profile;
}

void ExpectRefusal(const PlanRequest& request, const std::string& field, const std::string& value,
                   const std::string& sentence, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = GivenCut(request).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(status)["field"], field);
  EXPECT_EQ(ValuesOf(status)["value"], value);
  EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
}

TEST(Cut, ABalanceHoldsEveryLayerInStagesOfOneAtLeast) {
  PlanRequest request = Request(2, {"cpu:0", "cpu:1", "cpu:2"});
  const std::string lengths = "module and sum of balance have different length (module: 2, sum of balance: ";
  request.cut.balance = {1};
  ExpectRefusal(request, "spec.cut.balance", "[1]", lengths + "1)");
  ExpectRefusal(request, "spec.cut.balance", "[1]", "penstock pipeline plan");
  request.cut.balance = {3};
  ExpectRefusal(request, "spec.cut.balance", "[3]", lengths + "3)");
  request.cut.balance = {0, 2};
  ExpectRefusal(request, "spec.cut.balance", "[0, 2]",
                "all balance numbers must be positive integer (balance: [0, 2])");
  ExpectRefusal(request, "spec.cut.balance", "[0, 2]", "penstock pipeline plan");
  request.cut.balance = {-1, 3};
  ExpectRefusal(request, "spec.cut.balance", "[-1, 3]",
                "all balance numbers must be positive integer (balance: [-1, 3])");
  request.cut.balance = {1, 1};
  EXPECT_TRUE(GivenCut(request).ok());
  request.cut.stages = 3;
  ExpectRefusal(request, "spec.cut.stages", "3", "contradicts the balance, which has 2 stages");
}

TEST(Cut, NamedDevicesTooFewForTheBalanceAreRefused) {
  PlanRequest request = Request(3, {"cpu:0", "cpu:1"});
  request.cut.balance = {1, 1, 1};
  request.devices_named = true;
  ExpectRefusal(request, "spec.devices", "[cpu:0, cpu:1]",
                "too few devices to hold given partitions (devices: 2, partitions: 3)", absl::StatusCode::kOutOfRange);
  request.devices.push_back(request.devices[0]);  // named twice on purpose
  auto cut = GivenCut(request);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_THAT(cut->stages, ElementsAre(DeviceStage{0, "cpu:0"}, DeviceStage{1, "cpu:1"}, DeviceStage{2, "cpu:0"}));
}

TEST(Cut, ExtraDevicesAreDropped) {
  PlanRequest request = Request(3, {"cpu:0", "cpu:1", "cpu:2", "cpu:3", "cpu:4"});
  request.cut.balance = {1, 1, 1};
  request.devices_named = true;
  auto cut = GivenCut(request);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_THAT(cut->stages, ElementsAre(DeviceStage{0, "cpu:0"}, DeviceStage{1, "cpu:1"}, DeviceStage{2, "cpu:2"}));
}

TEST(Cut, TheServersDevicesAreUsedInTurn) {
  PlanRequest request = Request(3, {"cpu:0", "cpu:1"});
  request.cut.balance = {1, 1, 1};
  auto cut = GivenCut(request);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->stages[2].device, "cpu:0");
}

TEST(Cut, ChunksAreCheckedBeforeTheBalanceAndThatBeforeDevices) {
  PlanRequest request = Request(3, {"cpu:0"});
  request.devices_named = true;
  request.schedule.micro_batches = 0;
  request.cut.balance = {1, 1};
  const auto field = [&] { return ValuesOf(MakePlan(request, {}, RealClock()).status())["field"]; };
  EXPECT_EQ(field(), "spec.schedule.micro_batches");
  request.schedule.micro_batches = 1;
  EXPECT_EQ(field(), "spec.cut.balance");
  request.cut.balance = {1, 2};
  EXPECT_EQ(field(), "spec.devices");
}

TEST(Cut, TheNumberOfChunksMustBePositive) {
  for (int chunks : {0, -1}) {
    const absl::Status status = CheckSchedule({"gpipe", chunks, CheckpointMode::kExceptLast});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ValuesOf(status)["field"], "spec.schedule.micro_batches");
    EXPECT_EQ(ValuesOf(status)["value"], std::to_string(chunks));
    EXPECT_THAT(std::string(status.message()), HasSubstr("number of micro-batches must be a positive integer"));
  }
  EXPECT_TRUE(CheckSchedule({"gpipe", 1, CheckpointMode::kExceptLast}).ok());
}

TEST(Cut, TheDeviceOfALayerWinsOverTheTurnOfItsStage) {
  PlanRequest request = Request(3, {"cpu:0", "cpu:1"});
  request.cut.balance = {1, 2};
  request.layers[0].device = "cpu:1";
  auto cut = GivenCut(request);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_THAT(cut->stages, ElementsAre(DeviceStage{0, "cpu:1"}, DeviceStage{1, "cpu:1"}));
  request.layers[1].device = "cpu:0";
  request.layers[2].device = "cpu:1";
  ExpectRefusal(request, "spec.cut.balance", "[1, 2]", "puts layers of cpu:0 and cpu:1 on stage 1");
}

TEST(Cut, DevicesOfLayersMakeStages) {
  PlanRequest request = Request(0, {"cpu:0", "cpu:1"});
  request.layers = {Layer("a", "cpu:1"), Layer("b"), Layer("c", "cpu:0")};
  auto cut = GivenCut(request);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_THAT(cut->stages, ElementsAre(DeviceStage{0, "cpu:1"}, DeviceStage{2, "cpu:0"}));
  EXPECT_THAT(cut->why, ElementsAre("The devices that 2 of 3 layers name make 2 stages."));
  request.cut.stages = 2;
  ExpectRefusal(request, "spec.cut.stages", "2", "must be 0 where layers name their devices");
}

TEST(Cut, WithoutBalanceOrDevicesCostsDecide) {
  PlanRequest request = Request(6, {"cpu:0", "cpu:1"});
  EXPECT_TRUE(GivenCut(request)->stages.empty());
  auto cut = FindCut(request, LayersOfTime({10, 1, 1, 1, 1, 1}));
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_THAT(cut->stages, ElementsAre(DeviceStage{0, "cpu:0"}, DeviceStage{1, "cpu:1"}));
  EXPECT_THAT(cut->why, ElementsAre("The exact cut by measured time (forward and backward) puts 1, 5 layers on 2 "
                                    "stages, one per device: the most expensive has 10.000 ms, the mean is 7.500 ms."));
}

TEST(Cut, BlockPartitionGivesTheLengthsOfTheAncestorsBlocks) {
  PlanRequest request = Request(6, {"cpu:0", "cpu:1"});
  request.cut.method = CutSpec::Method::kBlockPartition;
  auto cut = FindCut(request, LayersOfTime({10, 1, 1, 1, 1, 1}));
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_THAT(cut->stages, ElementsAre(DeviceStage{0, "cpu:0"}, DeviceStage{3, "cpu:1"}));
  EXPECT_THAT(cut->why[0], HasSubstr("block_partition"));
}

TEST(Cut, ParametersCountAsOftenAsTheOptimizerNeedsThem) {
  LayerProfile layer;
  layer.stash_bytes = 1000;
  layer.parameter_bytes = 10;
  PlanRequest request = Request(1, {"cpu:0"});
  request.cut.cost = CutSpec::Cost::kSize;
  EXPECT_THAT(CutCosts(request, {layer}), ElementsAre(1020));  // 2: the gradients
  request.cut.parameter_scale = 5;                             // Adam
  EXPECT_THAT(CutCosts(request, {layer}), ElementsAre(1050));
  for (double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    request.cut.parameter_scale = bad;
    EXPECT_EQ(ValuesOf(GivenCut(request).status())["field"], "spec.cut.parameter_scale");
  }
}

TEST(Cut, RecomputationCostsAForwardMore) {
  LayerProfile layer;
  layer.forward_seconds = 1;
  layer.backward_seconds = 2;
  PlanRequest request = Request(1, {"cpu:0"});
  EXPECT_THAT(CutCosts(request, {layer}), ElementsAre(3e6));
  request.schedule.checkpoint = CheckpointMode::kExceptLast;
  EXPECT_THAT(CutCosts(request, {layer}), ElementsAre(4e6));
}

}  // namespace
}  // namespace penstock
