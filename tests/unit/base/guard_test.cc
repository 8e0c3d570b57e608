#include "engine/base/guard.h"

#include <new>
#include <stdexcept>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/failing_new.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(GuardedTest, GivesWhatTheBodyGives) {
  EXPECT_TRUE(Guarded("a test", [] {}).ok());
  EXPECT_EQ(Guarded("a test", [] { return absl::NotFoundError("gone"); }), absl::NotFoundError("gone"));
  EXPECT_EQ(*Guarded("a test", [] { return absl::StatusOr<int>(7); }), 7);
}

TEST(GuardedTest, AnExceptionBecomesABugWhoseIncidentTheLogNames) {
  ::testing::internal::CaptureStderr();
  const absl::StatusOr<int> caught =
      Guarded("a test", []() -> absl::StatusOr<int> { throw std::runtime_error("secret of the machine"); });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(caught.status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(caught.status()), "BUG");
  const std::string incident = ValuesOf(caught.status())["incident"];
  EXPECT_THAT(incident, Not(""));
  EXPECT_THAT(std::string(caught.status().message()), HasSubstr(incident));
  EXPECT_THAT(std::string(caught.status().message()), Not(HasSubstr("secret")));
  EXPECT_THAT(log, HasSubstr("incident=\"" + incident + "\" text=\"secret of the machine\""));
}

TEST(GuardedTest, EveryIncidentHasANameOfItsOwn) {
  const auto incident = [] { return ValuesOf(Guarded("a test", [] { throw 7; }))["incident"]; };
  EXPECT_NE(incident(), incident());
}

TEST(GuardedTest, NoMemoryIsNoBug) {
  EXPECT_EQ(ReasonOf(Guarded("a test", [] { throw std::bad_alloc(); })), "HOST_MEMORY");
}

TEST(GuardedTest, NothingPassesThoughThereIsNoMemoryToTellOfIt) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  testing::FailNew();
  const absl::Status caught = Guarded("a test whose name is too long to be kept without memory", [] { throw 7; });
  EXPECT_TRUE(testing::StopFailingNew());
  EXPECT_EQ(caught.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace penstock
