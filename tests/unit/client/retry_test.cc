#include "client/lib/retry.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr int64_t kNow = 5'000'000'000;
constexpr int64_t kFarDeadline = kNow + int64_t{3'600} * 1'000'000'000;

CallError Make(absl::StatusCode code, std::string_view reason) {
  return {reason.empty() ? absl::Status(code, "m") : absl::Status(Error(code, reason, "m")), {}, false};
}

TEST(RetryLoopTest, UnavailableIsTriedAgainWithGrowingBackoff) {
  RetryPolicy policy;
  policy.jitter = 0;
  RetryLoop loop(policy, 1);
  const CallError error = Make(absl::StatusCode::kUnavailable, "DRAINING");
  EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), absl::Milliseconds(100));
  EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), absl::Milliseconds(200));
  EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), absl::Milliseconds(400));
  for (int i = 0; i < 10; ++i) loop.NextDelay(error, kNow, kFarDeadline);
  EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), absl::Seconds(5));
}

TEST(RetryLoopTest, JitterStaysWithinItsShare) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    RetryLoop loop(RetryPolicy(), seed);
    const auto delay = loop.NextDelay(Make(absl::StatusCode::kUnavailable, ""), kNow, kFarDeadline);
    ASSERT_TRUE(delay.has_value());
    EXPECT_GE(*delay, absl::Milliseconds(80));
    EXPECT_LE(*delay, absl::Milliseconds(120));
  }
}

TEST(RetryLoopTest, OverloadIsTriedAgainOnlyIfTheServerSaysWhen) {
  RetryLoop loop(RetryPolicy(), 1);
  CallError error = Make(absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), std::nullopt);
  error.retry_after = absl::Seconds(3);
  EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), absl::Seconds(3));
}

TEST(RetryLoopTest, TheServersNeverIsObeyed) {
  RetryLoop loop(RetryPolicy(), 1);
  CallError error = Make(absl::StatusCode::kUnavailable, "DRAINING");
  error.retry_forbidden = true;
  EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), std::nullopt);
}

TEST(RetryLoopTest, OtherErrorsAreFinal) {
  for (absl::StatusCode code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound, absl::StatusCode::kFailedPrecondition,
        absl::StatusCode::kAborted, absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kInternal}) {
    RetryLoop loop(RetryPolicy(), 1);
    EXPECT_EQ(loop.NextDelay(Make(code, "REASON"), kNow, kFarDeadline), std::nullopt);
  }
}

TEST(RetryLoopTest, EndsAtThePatienceAndAtTheDeadline) {
  RetryPolicy policy;
  policy.jitter = 0;
  policy.give_up_after = absl::Seconds(1);
  const CallError error = Make(absl::StatusCode::kUnavailable, "");
  RetryLoop patient(policy, 1);
  EXPECT_TRUE(patient.NextDelay(error, kNow, kFarDeadline).has_value());
  EXPECT_FALSE(patient.NextDelay(error, kNow + 950'000'000, kFarDeadline).has_value());
  RetryLoop hurried(policy, 1);
  EXPECT_FALSE(hurried.NextDelay(error, kNow, kNow + 50'000'000).has_value());
  policy.give_up_after = absl::ZeroDuration();
  RetryLoop never(policy, 1);
  EXPECT_FALSE(never.NextDelay(error, kNow, kFarDeadline).has_value());
}

TEST(RetryLoopTest, DamagedChunksAreSentAgainAtOnceButNotForEver) {
  RetryLoop loop(RetryPolicy(), 1);
  const CallError error = Make(absl::StatusCode::kDataLoss, "CHUNK_CHECKSUM");
  for (int i = 0; i < 8; ++i) EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), absl::ZeroDuration());
  EXPECT_EQ(loop.NextDelay(error, kNow, kFarDeadline), std::nullopt);
}

}  // namespace
}  // namespace penstock
