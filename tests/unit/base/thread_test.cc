#include "engine/base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

std::string OwnName() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

TEST(ThreadTest, RunsItsBodyUnderItsName) {
  std::string name;
  Thread("ps-stage-3", [&] { name = OwnName(); }).Join();
  EXPECT_EQ(name, "ps-stage-3");
}

TEST(ThreadTest, ALongNameKeepsFifteenCharacters) {
  std::string name;
  Thread("ps-a-very-long-name", [&] { name = OwnName(); }).Join();
  EXPECT_EQ(name, "ps-a-very-long-");
}

TEST(ThreadTest, JoiningTwiceIsHarmless) {
  Thread thread("ps-test", [] {});
  thread.Join();
  thread.Join();
}

TEST(ThreadTest, AnExceptionEndsTheThreadAndNotTheProcess) {
  Thread thread("ps-test", [] { throw std::runtime_error("broken"); });
  thread.Join();
  EXPECT_EQ(ReasonOf(thread.status()), "BUG");
  Thread next("ps-test", [] {});
  next.Join();
  EXPECT_TRUE(next.status().ok());
}

TEST(ThreadTest, TheDestructorWaitsForTheBody) {
  std::atomic<bool> go = false;
  bool done = false;
  auto thread = std::make_unique<Thread>("ps-test", [&] {
    while (!go) sched_yield();
    done = true;
  });
  go = true;
  thread.reset();
  EXPECT_TRUE(done);
}

TEST(ThreadTest, AThreadIsPinnedBeforeItsBodyRunsAndItsMakerIsNot) {
  const std::vector<int> all = UsableCores();
  std::vector<int> seen;
  Thread("ps-test", [&] { seen = UsableCores(); }, {all.back()}).Join();
  EXPECT_THAT(seen, ElementsAre(all.back()));
  EXPECT_EQ(UsableCores(), all);
}

TEST(ThreadTest, UsableCoresAreAscendingAndNotEmpty) {
  const std::vector<int> cores = UsableCores();
  ASSERT_FALSE(cores.empty());
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
}

TEST(ThreadTest, PinningToACoreThatIsNotThereNamesIt) {
  const absl::Status status = PinThisThread({CPU_SETSIZE - 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::to_string(CPU_SETSIZE - 1)));
}

TEST(ThreadTest, AThreadThatCannotBePinnedRunsAndWarns) {
  const int64_t warnings = LoggedLines(LogLevel::kWarning);
  bool ran = false;
  Thread("ps-test", [&] { ran = true; }, {CPU_SETSIZE - 1}).Join();
  EXPECT_TRUE(ran);
  EXPECT_EQ(LoggedLines(LogLevel::kWarning), warnings + 1);
}

TEST(ThreadTest, ACoreNumberOutsideTheKernelsRangeIsRefused) {
  EXPECT_EQ(PinThisThread({-1}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(PinThisThread({CPU_SETSIZE}).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace penstock
