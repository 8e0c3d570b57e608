#include "engine/journal_view/journal_messages.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/error.h"
#include "engine/journal/journal_errors.h"
#include "penstock/journal/v1/journal.pb.h"

namespace penstock {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

ListedCall Call(CallStatus status, const journal::v1::Answer& answer = {}) {
  return {.sequence = 7,
          .identity = "ann",
          .method = "TrainStep",
          .request_id = "first",
          .accepted_unix_nanos = 5 * kSecond,
          .outcome = {.status = status,
                      .run_nanos = 2 * kSecond,
                      .settled_unix_nanos = 9 * kSecond,
                      .bytes = answer.SerializeAsString()}};
}

journal::v1::Answer Step() {
  journal::v1::Answer answer;
  answer.mutable_outcome()->set_step(3);
  answer.mutable_outcome()->set_loss(0.5);
  answer.mutable_outcome()->set_applied(true);
  return answer;
}

TEST(JournalMessages, ACallSaysWhenItCameAndHowItWent) {
  journal::v1::Answer failed;
  failed.mutable_error()->set_reason("FIELD_INVALID");
  const absl::StatusOr<v1::JournalCall> message = MessageOf(Call(CallStatus::kFailed, failed));
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->sequence(), 7);
  EXPECT_EQ(message->state(), v1::JournalCall::STATE_FAILED);
  EXPECT_EQ(message->error_reason(), "FIELD_INVALID");
  EXPECT_EQ(message->accept_time().seconds(), 5);
  EXPECT_EQ(message->settle_time().seconds(), 9);
  EXPECT_EQ(message->run_seconds(), 2);
}

TEST(JournalMessages, AnOpenCallHasNotSettled) {
  const absl::StatusOr<v1::JournalCall> message = MessageOf(Call(CallStatus::kAccepted));
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->state(), v1::JournalCall::STATE_ACCEPTED);
  EXPECT_FALSE(message->has_settle_time());
}

TEST(JournalMessages, ACallThatWasCutHasNoTimeOfAcceptance) {
  ListedCall call = Call(CallStatus::kDone);
  call.cut = true;
  EXPECT_FALSE(MessageOf(call)->has_accept_time());
}

TEST(JournalMessages, AnOutcomeThatIsNoAnswerIsDamage) {
  ListedCall call = Call(CallStatus::kDone);
  call.outcome.bytes = "no answer";
  EXPECT_EQ(ReasonOf(MessageOf(call).status()), "JOURNAL_CORRUPT");
  EXPECT_EQ(ReasonOf(StepOf(call).status()), "JOURNAL_CORRUPT");
}

TEST(JournalMessages, OnlyAnOptimizerStepThatIsDoneIsInTheHistory) {
  const absl::StatusOr<std::optional<v1::HistoryStep>> step = StepOf(Call(CallStatus::kDone, Step()));
  ASSERT_TRUE(step.ok() && step->has_value());
  EXPECT_EQ((*step)->step(), 3);
  EXPECT_EQ((*step)->sequence(), 7);
  EXPECT_EQ((*step)->loss(), 0.5);
  EXPECT_TRUE((*step)->applied());
  journal::v1::Answer forward = Step();
  forward.mutable_outcome()->clear_applied();
  EXPECT_FALSE(StepOf(Call(CallStatus::kDone, forward))->has_value());
  EXPECT_FALSE(StepOf(Call(CallStatus::kFailed, Step()))->has_value());
}

TEST(JournalMessages, ACheckTellsTheDamageThatItFound) {
  const v1::VerifyJournalResponse message =
      MessageOf(JournalCheck{.calls = 4, .outcomes = 3, .damage = JournalCorrupt("call 5 is missing")});
  EXPECT_EQ(message.calls(), 4);
  EXPECT_EQ(message.outcomes(), 3);
  EXPECT_NE(message.damage().find("call 5 is missing"), std::string::npos);
  EXPECT_EQ(MessageOf(JournalCheck()).damage(), "");
}

}  // namespace
}  // namespace penstock
