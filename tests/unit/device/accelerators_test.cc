#include "engine/device/accelerators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/base/error.h"
#include "engine/device/device_streams.h"

namespace penstock {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

// The real module's place is taken by one that finds two devices.
const CudaLibraries kTwoDevices = {.driver = "libm.so.6", .module = FAKE_MODULE};

// What was found is remembered for the life of the process, so each case has a process of its own.
#define IN_A_PROCESS(condition) EXPECT_EXIT(std::exit((condition) ? 0 : 1), ExitedWithCode(0), "")

int CountAfterOpening(const std::vector<std::string>& devices) {
  OpenAccelerators(devices, kTwoDevices);
  return FoundCuda().count;
}

TEST(OpenAcceleratorsDeathTest, OpensCudaWhereADeviceNamesIt) {
  IN_A_PROCESS(CountAfterOpening({"cpu:0", "cuda:1"}) == 2);
  IN_A_PROCESS(CountAfterOpening({"cuda"}) == 2);
}

TEST(OpenAcceleratorsDeathTest, OpensCudaWhereNoDeviceIsNamed) { IN_A_PROCESS(CountAfterOpening({}) == 2); }

TEST(OpenAcceleratorsDeathTest, LeavesCudaAloneWhereOnlyCpusAreNamed) {
  IN_A_PROCESS(CountAfterOpening({"cpu:0", "cpu"}) == 0);
}

TEST(OpenAcceleratorsDeathTest, RemembersTheFirstAnswer) {
  IN_A_PROCESS(CountAfterOpening({"cpu"}) == 0 && CountAfterOpening({"cuda"}) == 0);
}

TEST(OpenAcceleratorsDeathTest, TellsWhyADeviceThatIsAskedForIsNotThere) {
  const auto message = [] {
    OpenAccelerators({"cuda:0"}, {.driver = "libnosuchdriver.so.1", .module = FAKE_MODULE});
    return std::string(ParseDevices({"cuda:0"}, {}, {0}).status().message());
  };
  IN_A_PROCESS(message().find("devices[0]: there is no CUDA device: this machine has no NVIDIA driver") == 0);
}

TEST(OpenAcceleratorsDeathTest, GivesDevicesTheirStreamsAndNoneToThoseThatAreNotThere) {
  const auto streams_of = [](int index) {
    OpenAccelerators({}, kTwoDevices);
    Device device;
    device.kind = DeviceKind::kCuda;
    device.index = index;
    return &StreamsOf(device);
  };
  IN_A_PROCESS(streams_of(0) != streams_of(1) && streams_of(1) == streams_of(1) && streams_of(0) != &CpuStreams());
  EXPECT_DEATH(streams_of(2), "broken invariant");
}

TEST(OpenAcceleratorsDeathTest, WithoutNamesEveryCudaDeviceIsADevice) {
  const auto names = [] {
    OpenAccelerators({}, kTwoDevices);
    std::string names;
    const auto devices = ParseDevices({}, {}, {0, 1});
    for (const Device& device : devices.value())
      names += device.name + " " + std::to_string(device.memory_limit_bytes) + ";";
    return names;
  };
  IN_A_PROCESS(names() == "cuda:0 900;cuda:1 900;");
}

TEST(FoundCuda, IsNothingBeforeSomebodyLooked) {
  EXPECT_EQ(FoundCuda().count, 0);
  EXPECT_EQ(FoundCuda().why_none, "CUDA was not opened");
  EXPECT_THAT(std::string(ParseDevices({"cuda:0"}, {}, {0}).status().message()), HasSubstr("CUDA was not opened"));
}

}  // namespace
}  // namespace penstock
