#include "engine/plan/device_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayerSpec LayerOn(const std::string& device) { return {.kind = "relu", .name = "a", .options = {}, .device = device}; }

std::vector<Device> Devices() { return {{"cpu:0", {}, 0}, {"cpu:1", {}, 0}, {"cuda:0", {}, 0}}; }

TEST(DeviceCut, NeighboursOnOneDeviceMerge) {
  EXPECT_THAT(CutByDevices({"cuda:0", "cuda:0", "cuda:1", "cuda:0"}),
              ElementsAre(DeviceStage{0, "cuda:0"}, DeviceStage{2, "cuda:1"}, DeviceStage{3, "cuda:0"}));
  EXPECT_THAT(CutByDevices({"cpu:1", "cpu:1", "cpu:0", "cpu:0"}),
              ElementsAre(DeviceStage{0, "cpu:1"}, DeviceStage{2, "cpu:0"}));
}

TEST(DeviceCut, EveryLayerOnPlainCpuIsAStageOfItsOwn) {
  EXPECT_THAT(
      CutByDevices({"cpu", "cpu", "cpu:0", "cpu:0", "cpu"}),
      ElementsAre(DeviceStage{0, "cpu:0"}, DeviceStage{1, "cpu:0"}, DeviceStage{2, "cpu:0"}, DeviceStage{4, "cpu:0"}));
}

// merged_partitions of the ancestor's tests: a, b0 and b1 on the first GPU, c and d on the CPU.
TEST(DeviceCut, PtMergedPartitions) {
  EXPECT_THAT(CutByDevices({"cuda:0", "cuda:0", "cuda:0", "cpu", "cpu"}),
              ElementsAre(DeviceStage{0, "cuda:0"}, DeviceStage{3, "cpu:0"}, DeviceStage{4, "cpu:0"}));
}

TEST(DeviceCut, ALayerWithoutDeviceStaysWhereItsNeighbourIs) {
  EXPECT_THAT(CutByDevices({"cuda:0", "", "cuda:1", ""}),
              ElementsAre(DeviceStage{0, "cuda:0"}, DeviceStage{2, "cuda:1"}));
  EXPECT_THAT(CutByDevices({"cuda:0", "", "cuda:0"}), ElementsAre(DeviceStage{0, "cuda:0"}));
  EXPECT_THAT(CutByDevices({"", "", "cuda:1", "cuda:0"}),
              ElementsAre(DeviceStage{0, "cuda:1"}, DeviceStage{3, "cuda:0"}));
  EXPECT_THAT(CutByDevices({"cpu", "", "cpu"}), ElementsAre(DeviceStage{0, "cpu:0"}, DeviceStage{2, "cpu:0"}));
}

TEST(DeviceCut, NamesAreMadeFull) {
  auto devices = DevicesOfLayers({LayerOn("cuda"), LayerOn(""), LayerOn("cpu"), LayerOn("cpu:1")}, Devices());
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_THAT(*devices, ElementsAre("cuda:0", "", "cpu", "cpu:1"));
}

TEST(DeviceCut, LayersWithinALayerMustAgree) {
  LayerSpec outer = LayerOn("");
  outer.layers = {LayerOn("cpu:1"), LayerOn(""), LayerOn("cpu:1")};
  EXPECT_THAT(*DevicesOfLayers({outer}, Devices()), ElementsAre("cpu:1"));
  outer.layers[1].device = "cpu:0";
  const absl::Status status = DevicesOfLayers({LayerOn(""), outer}, Devices()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValuesOf(status)["field"], "spec.model.layers[1].device");
  EXPECT_EQ(ValuesOf(status)["value"], "cpu:0, cpu:1");
  EXPECT_THAT(std::string(status.message()), HasSubstr("nn.Module: a (relu), should have all parameters on a single "
                                                       "device, please use .to() to place the module on a single "
                                                       "device"));
}

TEST(DeviceCut, TheOuterLayersDeviceWins) {
  LayerSpec outer = LayerOn("cuda:0");
  outer.layers = {LayerOn("cpu:1"), LayerOn("cpu:0")};
  EXPECT_THAT(*DevicesOfLayers({outer}, Devices()), ElementsAre("cuda:0"));
}

TEST(DeviceCut, AnUnknownDeviceIsNamedWithTheKnownOnes) {
  for (const std::string name : {"cpu:7", "gpu", "cuda:1", " cpu:0"}) {
    const absl::Status status = DevicesOfLayers({LayerOn("cpu:0"), LayerOn(name)}, Devices()).status();
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
    EXPECT_EQ(ValuesOf(status)["field"], "spec.model.layers[1].device");
    EXPECT_EQ(ValuesOf(status)["value"], name);
    EXPECT_THAT(std::string(status.message()), HasSubstr("no such device (there are cpu:0, cpu:1, cuda:0)"));
  }
  EXPECT_FALSE(DevicesOfLayers({LayerOn("cpu")}, {{"cpu:1", {}, 0}}).ok());
}

std::vector<LayerSpec> Named(const std::vector<std::string>& names) {
  std::vector<LayerSpec> layers;
  for (const std::string& name : names) layers.push_back({.kind = "relu", .name = name, .options = {}});
  return layers;
}

TEST(PlaceByName, PutsDevicesOverTheLayersOfTheseNames) {
  std::vector<LayerSpec> layers = Named({"embedding", "block0", "block1", "head"});
  ASSERT_TRUE(PlaceByName({{"block0", "cpu:1"}, {"head", "cuda"}}, Devices(), &layers).ok());
  EXPECT_THAT(*DevicesOfLayers(layers, Devices()), ElementsAre("", "cpu:1", "", "cuda:0"));
}

TEST(PlaceByName, RefusesWhatIsNotThere) {
  std::vector<LayerSpec> layers = Named({"a", "b"});
  layers[1].device = "cpu:0";
  for (const auto& [name, device, problem] :
       std::vector<std::tuple<std::string, std::string, std::string>>{{"c", "cpu:0", "names no layer; known are a, b"},
                                                                      {"", "cpu:0", "names no layer; known are a, b"},
                                                                      {"a", "cpu:7", "no such device"},
                                                                      {"a", "", "no such device"},
                                                                      {"b", "cpu:1", "the layer itself names cpu:0"}}) {
    const absl::Status status = PlaceByName({{name, device}}, Devices(), &layers);
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << name;
    EXPECT_EQ(ValuesOf(status)["field"], "spec.model.layer_devices[" + name + "]");
    EXPECT_THAT(status.message(), HasSubstr(problem));
  }
}

}  // namespace
}  // namespace penstock
