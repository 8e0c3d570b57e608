#include "engine/base/memory_bound.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace penstock {
namespace {

constexpr int64_t kMachine = int64_t{1} << 50;  // no machine of ours has so much

// A /proc and a /sys of our own.
class MemoryBound : public ::testing::Test {
 protected:
  MemoryBound() {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~MemoryBound() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  int64_t Bound() const { return MemoryBoundBytes(root_); }

  const std::string root_ = ::testing::TempDir() + "memory_bound";
};

TEST_F(MemoryBound, IsTheMachinesWithoutAnyGroup) {
  EXPECT_GT(Bound(), 1 << 20);
  EXPECT_LT(Bound(), kMachine);
}

TEST_F(MemoryBound, AContainerFindsItsLimitAtTheRoot) {
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/memory.max", "1000000");
  EXPECT_EQ(Bound(), 1'000'000);
}

TEST_F(MemoryBound, TheLeastOfTheGroupAndThoseAboveItCounts) {
  Write("/proc/self/cgroup", "0::/system.slice/penstock.service");
  Write("/sys/fs/cgroup/system.slice/penstock.service/memory.max", "3000000");
  EXPECT_EQ(Bound(), 3'000'000);
  Write("/sys/fs/cgroup/system.slice/memory.max", "2000000");
  EXPECT_EQ(Bound(), 2'000'000);
  Write("/sys/fs/cgroup/system.slice/penstock.service/memory.max", "1000000");
  EXPECT_EQ(Bound(), 1'000'000);
}

TEST_F(MemoryBound, MaxIsNoLimit) {
  const int64_t machine = Bound();
  Write("/proc/self/cgroup", "0::/a");
  Write("/sys/fs/cgroup/a/memory.max", "max");
  EXPECT_EQ(Bound(), machine);
}

TEST_F(MemoryBound, TheFirstVersionHasAHierarchyOfItsOwn) {
  Write("/proc/self/cgroup", "9:cpu,cpuacct:/docker/1\n8:memory:/docker/1\n0::/");
  Write("/sys/fs/cgroup/cpu/docker/1/memory.limit_in_bytes", "5");
  const int64_t machine = Bound();
  EXPECT_GT(machine, 5);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none
  EXPECT_EQ(Bound(), machine);
  Write("/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "4000000");
  EXPECT_EQ(Bound(), 4'000'000);
}

TEST_F(MemoryBound, LinesThatCannotBeReadAreNoGroups) {
  const int64_t machine = Bound();
  Write("/proc/self/cgroup", "\n:\nmemory\n0::relative\n8:memory:");
  EXPECT_EQ(Bound(), machine);
}

}  // namespace
}  // namespace penstock
