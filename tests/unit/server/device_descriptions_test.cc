#include "server/device_descriptions.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "engine/device/accelerators.h"
#include "engine/device/device_streams.h"
#include "tests/support/stand_in_device.h"

namespace penstock {
namespace {

const Device kCpu = {.name = "cpu:0", .cores = {0}, .memory_limit_bytes = 1 << 20};
const Device kGpu = {.name = "cuda:1", .cores = {0}, .memory_limit_bytes = 800, .kind = DeviceKind::kCuda, .index = 1};

testing::StandInStreams& Gpu() { return dynamic_cast<testing::StandInStreams&>(StreamsOf(kGpu)); }

class DescribeDevicesTest : public ::testing::Test {
 protected:
  void SetUp() override { OpenAccelerators({}, {.driver = "libm.so.6", .module = FAKE_MODULE}); }
  void TearDown() override {
    Gpu().KeepTime({});  // it works again
    Gpu().SetMemory({});
  }
};

TEST_F(DescribeDevicesTest, NamesAreThoseThatLanesHave) {
  const auto leader = DescribeDevices({kCpu, kGpu}, Rank(0));
  ASSERT_EQ(leader.size(), 2);
  EXPECT_EQ(leader[0].name, "cpu:0");
  EXPECT_EQ(leader[1].name, "cuda:1");
  EXPECT_EQ(leader[1].memory_limit_bytes, 800);
  EXPECT_EQ(DescribeDevices({kGpu}, Rank(2))[0].name, "2/cuda:1");
  EXPECT_EQ(DescribeDevices({{.name = "cpu:0"}}, Rank(0))[0].memory_limit_bytes, MachineMemoryBytes());
}

TEST_F(DescribeDevicesTest, AnAllocatorIsReadWheneverSomebodyLooks) {
  const auto devices = DescribeDevices({kCpu, kGpu}, Rank(0));
  EXPECT_FALSE(devices[0].allocator) << "a CPU has none of ours";
  ASSERT_TRUE(devices[1].allocator);
  EXPECT_EQ(devices[1].allocator(), std::nullopt) << "this one does not count";

  Gpu().SetMemory({.total_bytes = 1000, .free_bytes = 900, .allocated_bytes = 40, .reserved_bytes = 64});
  const auto bytes = devices[1].allocator();
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(bytes->allocated, 40);
  EXPECT_EQ(bytes->cached, 24);

  Gpu().Break();
  EXPECT_EQ(devices[1].allocator(), std::nullopt) << "a GPU that does nothing any more ends no scrape";
}

}  // namespace
}  // namespace penstock
