#include "engine/observe/allocator_statistics.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "engine/base/freed_memory.h"
#include "engine/observe/process_statistics.h"

namespace penstock {
namespace {

constexpr size_t kBlock = 8 << 20;
constexpr int64_t kNear = 1 << 20;

TEST(AllocatorStatisticsTest, WhatIsFreedIsKeptUntilItIsReturned) {
  const auto before = ReadAllocatorStatistics();
  if (before.allocated_bytes == 0) GTEST_SKIP() << "a sanitizer brings an allocator of its own";
  std::unique_ptr<char[]> block(new char[kBlock]);
  std::memset(block.get(), 1, kBlock);
  const auto with = ReadAllocatorStatistics();
  EXPECT_NEAR(with.allocated_bytes - before.allocated_bytes, kBlock, kNear);
  EXPECT_NEAR(with.kept_bytes, before.kept_bytes, kNear);
  EXPECT_LE(with.allocated_bytes + with.kept_bytes, ReadProcessStatistics()->resident_bytes);

  block.reset();
  const auto freed = ReadAllocatorStatistics();
  EXPECT_NEAR(freed.allocated_bytes, before.allocated_bytes, kNear);
  EXPECT_NEAR(freed.kept_bytes - before.kept_bytes, kBlock, kNear);

  ReturnFreedMemory();
  EXPECT_NEAR(ReadAllocatorStatistics().kept_bytes, before.kept_bytes, kNear);
}

TEST(AllocatorStatisticsTest, WhatThreadsHaveFreedIntoTheirCachesIsKeptToo) {
  const auto before = ReadAllocatorStatistics();
  if (before.allocated_bytes == 0) GTEST_SKIP() << "a sanitizer brings an allocator of its own";
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 8; ++i) blocks.emplace_back(new char[20'000]);
  for (auto& block : blocks) std::memset(block.get(), 1, 20'000);
  EXPECT_GE(ReadAllocatorStatistics().allocated_bytes - before.allocated_bytes, 8 * 20'000);
  blocks.clear();
  EXPECT_LT(ReadAllocatorStatistics().allocated_bytes - before.allocated_bytes, 20'000);
}

}  // namespace
}  // namespace penstock
