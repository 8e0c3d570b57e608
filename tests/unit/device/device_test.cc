#include "engine/device/device.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/base/thread.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

TEST(ParseDevices, GivesOneDevicePerCoreWithoutEntries) {
  const auto devices = ParseDevices({}, {}, {4, 7});
  ASSERT_TRUE(devices.ok());
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[0].name, "cpu:0");
  EXPECT_THAT((*devices)[0].cores, ElementsAre(4));
  EXPECT_THAT((*devices)[1].cores, ElementsAre(7));
  EXPECT_EQ((*devices)[1].memory_limit_bytes, 0);
}

TEST(ParseDevices, SharesCoresOutEvenly) {
  const auto devices = ParseDevices({"cpu:0", "cpu:1"}, {}, {0, 1, 2, 3, 4});
  ASSERT_TRUE(devices.ok());
  EXPECT_THAT((*devices)[0].cores, ElementsAre(0, 1));
  EXPECT_THAT((*devices)[1].cores, ElementsAre(2, 3, 4));
}

TEST(ParseDevices, LetsDevicesShareCoresWhereTheyOutnumberThem) {
  const auto devices = ParseDevices({"cpu:0", "cpu:1", "cpu:2", "cpu:3"}, {}, {0, 1});
  ASSERT_TRUE(devices.ok());
  EXPECT_THAT((*devices)[0].cores, ElementsAre(0));
  EXPECT_THAT((*devices)[1].cores, ElementsAre(0));
  EXPECT_THAT((*devices)[2].cores, ElementsAre(1));
  EXPECT_THAT((*devices)[3].cores, ElementsAre(1));
}

TEST(ParseDevices, LeavesNamedCoresToTheirDevice) {
  const auto devices = ParseDevices({"cpu:1=0,2-3", "cpu:0"}, {}, {0, 1, 2, 3, 4});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ((*devices)[0].name, "cpu:1");
  EXPECT_THAT((*devices)[0].cores, ElementsAre(0, 2, 3));
  EXPECT_THAT((*devices)[1].cores, ElementsAre(1, 4));
}

TEST(ParseDevices, ReadsMemoryLimits) {
  const auto devices = ParseDevices({"cpu:0", "cpu:1", "cpu:2"}, {"cpu:1=8GiB", "cpu:0=1000", "cpu:2=3KiB"}, {0, 1, 2});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ((*devices)[0].memory_limit_bytes, 1000);
  EXPECT_EQ((*devices)[1].memory_limit_bytes, int64_t{8} << 30);
  EXPECT_EQ((*devices)[2].memory_limit_bytes, 3072);
}

TEST(ParseDevices, RefusesBadDevicesNamingTheEntry) {
  for (const char* entry :
       {"", "cpu", "cpu:", "cpu:-1", "cpu:01", "cpu:x", "cuda:0", "cpu:0x", "cpu:1=", "cpu:1=a", "cpu:1=2-1",
        "cpu:1=1-2-3", "cpu:1=1,1", "cpu:1=9", "cpu:1=0-99999", "cpu:9999999", "cpu:0"}) {
    const auto devices = ParseDevices({"cpu:0=0", entry}, {}, {0, 1, 2});
    ASSERT_FALSE(devices.ok()) << entry;
    EXPECT_EQ(devices.status().code(), absl::StatusCode::kInvalidArgument) << entry;
    EXPECT_EQ(ReasonOf(devices.status()), "FIELD_INVALID") << entry;
    EXPECT_EQ(ValuesOf(devices.status())["field"], "devices[1]") << entry;
    EXPECT_EQ(ValuesOf(devices.status())["value"], entry);
  }
}

TEST(ParseDevices, RefusesBadMemoryNamingTheEntry) {
  for (const char* entry : {"", "cpu:0", "cpu:0=", "cpu:0=0", "cpu:0=-5", "cpu:0=5GB", "cpu:0=9223372036854775807KiB",
                            "cpu:0=99999999999999999999", "cpu:7=5", "cpu:1=1GiB"}) {
    const auto devices = ParseDevices({"cpu:0", "cpu:1"}, {"cpu:1=5", entry}, {0});
    ASSERT_FALSE(devices.ok()) << entry;
    EXPECT_EQ(ReasonOf(devices.status()), "FIELD_INVALID") << entry;
    EXPECT_EQ(ValuesOf(devices.status())["field"], "memory[1]") << entry;
  }
}

// Two GPUs, of which the second has more memory.
CudaFound TwoGpus() {
  return {.count = 2, .free_bytes = [](int index) { return int64_t{1000} * (index + 1); }, .why_none = ""};
}

TEST(ParseDevices, CpuIsCpu0AndCudaIsCuda0) {
  EXPECT_EQ(CanonicalDeviceName("cpu"), "cpu:0");
  EXPECT_EQ(CanonicalDeviceName("cuda"), "cuda:0");
  EXPECT_EQ(CanonicalDeviceName("cuda:1"), "cuda:1");
  EXPECT_EQ(CanonicalDeviceName("gpu"), "gpu");
  const auto devices = ParseDevices({"cpu", "cuda", "cuda:1", "cpu:1"}, {}, {0, 1, 2, 3}, TwoGpus());
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 4u);
  EXPECT_EQ((*devices)[0].name, "cpu:0");
  EXPECT_EQ((*devices)[0].kind, DeviceKind::kCpu);
  EXPECT_EQ((*devices)[1].name, "cuda:0");
  EXPECT_EQ((*devices)[1].kind, DeviceKind::kCuda);
  EXPECT_EQ((*devices)[2].name, "cuda:1");
  EXPECT_EQ((*devices)[2].index, 1);
  EXPECT_EQ((*devices)[3].index, 1);
  EXPECT_THAT((*devices)[2].cores, ElementsAre(2));  // of the thread that drives it
}

TEST(ParseDevices, TwoNamesOfOneDeviceAreOneDevice) {
  for (const char* again : {"cpu", "cpu:0"}) {
    EXPECT_EQ(ValuesOf(ParseDevices({"cpu", again}, {}, {0}).status())["field"], "devices[1]") << again;
  }
  for (const char* again : {"cuda", "cuda:0"}) {
    const auto devices = ParseDevices({"cuda", again}, {}, {0}, TwoGpus());
    EXPECT_EQ(ValuesOf(devices.status())["field"], "devices[1]") << again;
  }
}

TEST(ParseDevices, TakesEveryCudaDeviceWithoutEntriesAndLimitsItToWhatIsFree) {
  const auto devices = ParseDevices({}, {}, {0, 1, 2, 3}, TwoGpus());
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[0].name, "cuda:0");
  EXPECT_EQ((*devices)[0].memory_limit_bytes, 1000);
  EXPECT_EQ((*devices)[1].name, "cuda:1");
  EXPECT_EQ((*devices)[1].memory_limit_bytes, 2000);
}

TEST(ParseDevices, LetsTheUserLimitACudaDevice) {
  const auto devices = ParseDevices({"cuda:0", "cuda:1"}, {"cuda=77"}, {0}, TwoGpus());
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ((*devices)[0].memory_limit_bytes, 77);
  EXPECT_EQ((*devices)[1].memory_limit_bytes, 2000);
}

TEST(ParseDevices, RefusesCudaDevicesThatAreNotThereAndSaysWhy) {
  const auto beyond = ParseDevices({"cuda:1", "cuda:2"}, {}, {0}, TwoGpus());
  EXPECT_EQ(beyond.status().message(), "devices[1]: there are only 2 CUDA devices, got cuda:2");
  const CudaFound none{.count = 0, .free_bytes = {}, .why_none = "the GPUs are away"};
  const auto absent = ParseDevices({"cuda"}, {}, {0}, none);
  EXPECT_EQ(absent.status().message(), "devices[0]: there is no CUDA device: the GPUs are away, got cuda");
  EXPECT_EQ(ReasonOf(absent.status()), "FIELD_INVALID");
  for (const char* entry : {"cuda:", "cuda:01", "cuda:-1", "cudas", "cuda0", "cuda:0=9"}) {
    EXPECT_EQ(ReasonOf(ParseDevices({entry}, {}, {0}, TwoGpus()).status()), "FIELD_INVALID") << entry;
  }
}

TEST(ParseDevices, LeavesOutACudaDeviceThatCannotBeUsedAndRefusesItByName) {
  CudaFound found = TwoGpus();
  found.why_unusable = [](int index) { return index == 0 ? "it is too old" : ""; };
  const auto devices = ParseDevices({}, {}, {0, 1}, found);
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 1u);
  EXPECT_EQ((*devices)[0].name, "cuda:1");
  const auto named = ParseDevices({"cuda:0"}, {}, {0}, found);
  EXPECT_EQ(named.status().message(), "devices[0]: this CUDA device can't be used: it is too old, got cuda:0");
  found.why_unusable = [](int) { return "it is too old"; };
  const auto none = ParseDevices({}, {}, {0, 1}, found);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ((*none)[0].name, "cpu:0");
  EXPECT_EQ(none->size(), 2u);
}

TEST(UseCores, SetsTheThreadsOfTheCallingThreadOnly) {
  const int before = at::get_num_threads();
  int one = 0, three = 0;
  Thread("a", [&] {
    UseCores({.name = "cpu:0", .cores = {0}, .memory_limit_bytes = 0});
    one = at::get_num_threads();
    Thread("b", [&] {
      UseCores({.name = "cpu:1", .cores = {0, 1, 2}, .memory_limit_bytes = 0});
      three = at::get_num_threads();
    }).Join();
    // The other thread's setting must not reach this one.
    EXPECT_EQ(at::get_num_threads(), 1);
  }).Join();
  EXPECT_EQ(one, 1);
  EXPECT_EQ(three, 3);
  EXPECT_EQ(at::get_num_threads(), before);
  Thread("restore", [&] { at::set_num_threads(before); }).Join();  // the value that new threads start with
}

}  // namespace
}  // namespace penstock
