#include "engine/observe/process_statistics.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(ProcessStatTest, ReadsTheFieldsByNumberWhateverTheName) {
  const absl::StatusOr<ProcessStat> stat =
      ParseProcessStat("42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 111 222 13 14 15 16 17 18 333 19 444 20 21\n");
  ASSERT_TRUE(stat.ok());
  EXPECT_EQ(stat->user_ticks, 111);
  EXPECT_EQ(stat->system_ticks, 222);
  EXPECT_EQ(stat->start_ticks, 333);
  EXPECT_EQ(stat->resident_pages, 444);
}

TEST(ProcessStatTest, RefusesALineThatIsCutOff) {
  for (const char* line : {"", "42 (a", "42 (a) S 1 2 3", "42 (a) S x x x x x x x x x x x x x x x x x x x x x x"}) {
    EXPECT_FALSE(ParseProcessStat(line).ok()) << line;
  }
}

TEST(ProcessStatisticsTest, DescribeThisProcess) {
  const absl::StatusOr<ProcessStatistics> before = ReadProcessStatistics();
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_GT(before->resident_bytes, 100'000);
  EXPECT_GT(before->file_limit, 0);
  EXPECT_LT(before->start_time_seconds, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) + 2);
  EXPECT_GT(before->start_time_seconds, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) - 3600);

  const int descriptor = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  EXPECT_EQ(ReadProcessStatistics()->open_files, before->open_files + 1);
  ::close(descriptor);
  EXPECT_GE(ReadProcessStatistics()->cpu_seconds, before->cpu_seconds);
}

}  // namespace
}  // namespace penstock
