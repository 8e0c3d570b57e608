#include "engine/base/check.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace penstock {
namespace {

// stderr becomes a pipe that is full and that nobody reads.
void StallStderr() {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const char bytes[4096] = {};
  while (write(ends[1], bytes, sizeof(bytes)) > 0) {
  }
  while (write(ends[1], bytes, 1) > 0) {
  }
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
}

TEST(CheckDeathTest, SaysWhatIsBrokenAndWhere) {
  const int two = 2;
  EXPECT_DEATH(PENSTOCK_CHECK(two == 3), "check_test.cc:[0-9]+: broken invariant: two == 3\n");
}

TEST(CheckDeathTest, EndsThoughNobodyReads) {
  const auto broken = [] {
    StallStderr();
    alarm(30);  // the end of a process that hangs
    PENSTOCK_CHECK(false);
  };
  EXPECT_EXIT(broken(), ::testing::KilledBySignal(SIGABRT), "");
}

TEST(Check, LetsWhatHoldsPass) {
  int asked = 0;
  PENSTOCK_CHECK(++asked == 1);
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace penstock
