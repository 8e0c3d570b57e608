#include "server/rpc/convert/call_record_convert.h"

#include <string>

#include "engine/base/error.h"
#include "gtest/gtest.h"
#include "penstock/journal/v1/journal.pb.h"

namespace penstock {
namespace {

const WireCallRecords kRecords(nullptr);

std::string AnswerWithCode(int code) {
  journal::v1::Answer answer;
  answer.mutable_error()->set_code(code);
  answer.mutable_error()->set_reason("BROKEN");
  return answer.SerializeAsString();
}

TEST(CallRecords, AnErrorComesBackAsItWas) {
  const CallAnswer answer{
      .error =
          Error(absl::StatusCode::kUnauthenticated, "REASON", "what happened").With("field", "x").With("value", "1"),
      .has_outputs = true};
  const auto again = kRecords.ReadAnswer(kRecords.WriteAnswer(answer));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->error, answer.error);
  EXPECT_TRUE(again->has_outputs);
  EXPECT_FALSE(again->has_graph);
  EXPECT_EQ(kRecords.ReadAnswer(AnswerWithCode(1))->error.code(), absl::StatusCode::kCancelled);
}

TEST(CallRecords, AForwardComesBackWithItsLeaseAndTheStateThatItExpects) {
  const Call call({.expected_state = "a-1", .lease = absl::Minutes(5)}, ForwardCall());
  const auto again = kRecords.ReadCall("Forward", kRecords.WriteCall(call), {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->context.lease, absl::Minutes(5));
  EXPECT_EQ(again->context.expected_state, "a-1");
}

// As success it would be told to a retry.
TEST(CallRecords, AnErrorWithoutAKnownCodeIsDamage) {
  for (const int code : {0, -1, 17, 1 << 30}) {
    const auto read = kRecords.ReadAnswer(AnswerWithCode(code));
    EXPECT_EQ(ReasonOf(read.status()), "JOURNAL_CORRUPT") << code;
  }
}

TEST(CallRecords, AnUnknownMethodAndBytesThatAreNoRowAreDamage) {
  EXPECT_EQ(ReasonOf(kRecords.ReadCall("Dance", "", {}).status()), "JOURNAL_CORRUPT");
  EXPECT_EQ(ReasonOf(kRecords.ReadCall("TrainStep", "\xff\xff", {}).status()), "JOURNAL_CORRUPT");
  EXPECT_EQ(ReasonOf(kRecords.ReadAnswer("\xff\xff").status()), "JOURNAL_CORRUPT");
}

}  // namespace
}  // namespace penstock
