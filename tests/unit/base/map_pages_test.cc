#include "engine/base/map_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace penstock {
namespace {

class MapPagesTest : public ::testing::TestWithParam<size_t> {
 protected:
  static size_t Page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

  void SetUp() override {
    memory_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory_, MAP_FAILED);
    ASSERT_EQ(madvise(memory_, bytes_, MADV_NOHUGEPAGE), 0);  // else the kernel gives neighbours, too
    if (madvise(memory_, Page(), 23) != 0) GTEST_SKIP() << "this kernel maps no pages ahead";
  }
  void TearDown() override { munmap(memory_, bytes_); }

  std::vector<bool> Mapped() const {
    std::vector<unsigned char> pages((bytes_ + Page() - 1) / Page());
    EXPECT_EQ(mincore(memory_, bytes_, pages.data()), 0);
    return {pages.begin(), pages.end()};
  }

  const size_t bytes_ = GetParam() + 4 * Page();
  char* memory_ = nullptr;
};

// By one thread, by two, and an odd number of pages.
INSTANTIATE_TEST_SUITE_P(Sizes, MapPagesTest,
                         ::testing::Values(size_t{1} << 20, size_t{64} << 20, (size_t{64} << 20) + 12345));

TEST_P(MapPagesTest, EachPageIsThereAndKeepsItsContents) {
  char* const begin = memory_ + 2 * Page() + 100;  // within a page
  begin[0] = 'a';
  begin[GetParam() - 1] = 'z';
  MapPages(begin, GetParam());
  const std::vector<bool> mapped = Mapped();
  const size_t last = static_cast<size_t>(begin + GetParam() - 1 - memory_) / Page();
  EXPECT_TRUE(
      std::all_of(mapped.begin() + 2, mapped.begin() + static_cast<int64_t>(last) + 1, [](bool one) { return one; }));
  EXPECT_FALSE(mapped[1]) << "not before it";
  EXPECT_EQ(std::count(mapped.begin() + static_cast<int64_t>(last) + 1, mapped.end(), true), 0) << "nor behind it";
  EXPECT_EQ(begin[0], 'a');
  EXPECT_EQ(begin[GetParam() - 1], 'z');
}

TEST(MapPages, LittleMemoryIsLeftAlone) {
  const size_t bytes = (size_t{1} << 20) - 1;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  MapPages(memory, bytes);
  MapPages(nullptr, 0);
  std::vector<unsigned char> pages(256);
  ASSERT_EQ(mincore(memory, bytes, pages.data()), 0);
  EXPECT_EQ(std::count(pages.begin(), pages.end(), 0), 256);
  munmap(memory, bytes);
}

}  // namespace
}  // namespace penstock
