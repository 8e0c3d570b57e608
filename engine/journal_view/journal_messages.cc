#include "engine/journal_view/journal_messages.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "penstock/journal/v1/journal.pb.h"

namespace penstock {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;

void SetTime(int64_t unix_nanos, google::protobuf::Timestamp* time) {
  time->set_seconds(unix_nanos / kNanosPerSecond);
  time->set_nanos(static_cast<int32_t>(unix_nanos % kNanosPerSecond));
}

v1::JournalCall::State StateOf(CallStatus status) {
  switch (status) {
    case CallStatus::kAccepted:
      return v1::JournalCall::STATE_ACCEPTED;
    case CallStatus::kDone:
      return v1::JournalCall::STATE_DONE;
    case CallStatus::kFailed:
      return v1::JournalCall::STATE_FAILED;
    case CallStatus::kCancelled:
      return v1::JournalCall::STATE_CANCELLED;
  }
  return v1::JournalCall::STATE_UNSPECIFIED;
}

double SecondsOf(const ListedCall& call) { return static_cast<double>(call.outcome.run_nanos) * 1e-9; }

absl::StatusOr<journal::v1::Answer> AnswerOf(const ListedCall& call) {
  journal::v1::Answer answer;
  if (answer.ParseFromString(call.outcome.bytes)) return answer;
  return JournalCorrupt(absl::StrCat("the outcome of call ", call.sequence, " is no Answer"));
}

}  // namespace

absl::StatusOr<v1::JournalCall> MessageOf(const ListedCall& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const journal::v1::Answer answer, AnswerOf(call));
  v1::JournalCall message;
  message.set_sequence(call.sequence);
  message.set_caller(call.identity);
  message.set_method(call.method);
  message.set_request_id(call.request_id);
  message.set_state(StateOf(call.outcome.status));
  message.set_cut(call.cut);
  if (!call.cut) SetTime(call.accepted_unix_nanos, message.mutable_accept_time());
  if (call.outcome.status != CallStatus::kAccepted) {
    SetTime(call.outcome.settled_unix_nanos, message.mutable_settle_time());
  }
  message.set_inputs(static_cast<int32_t>(call.inputs));
  message.set_input_bytes(call.input_bytes);
  message.set_run_seconds(SecondsOf(call));
  message.set_error_reason(answer.error().reason());
  message.set_forward_sequence(call.forward_sequence);
  return message;
}

absl::StatusOr<std::optional<v1::HistoryStep>> StepOf(const ListedCall& call) {
  if (call.outcome.status != CallStatus::kDone) return std::optional<v1::HistoryStep>();
  PENSTOCK_ASSIGN_OR_RETURN(const journal::v1::Answer answer, AnswerOf(call));
  const v1::Outcome& outcome = answer.outcome();
  if (!outcome.has_applied()) return std::optional<v1::HistoryStep>();
  v1::HistoryStep step;
  step.set_step(outcome.step());
  step.set_sequence(call.sequence);
  SetTime(call.outcome.settled_unix_nanos, step.mutable_time());
  if (outcome.has_loss()) step.set_loss(outcome.loss());
  if (outcome.has_gradient_norm()) step.set_gradient_norm(outcome.gradient_norm());
  if (outcome.has_learning_rate()) step.set_learning_rate(outcome.learning_rate());
  step.set_applied(outcome.applied());
  step.set_run_seconds(SecondsOf(call));
  return std::optional<v1::HistoryStep>(std::move(step));
}

v1::VerifyJournalResponse MessageOf(const JournalCheck& check) {
  v1::VerifyJournalResponse message;
  message.set_calls(check.calls);
  message.set_inputs(check.inputs);
  message.set_input_bytes(check.input_bytes);
  message.set_outcomes(check.outcomes);
  message.set_damage(std::string(check.damage.message()));
  return message;
}

}  // namespace penstock
