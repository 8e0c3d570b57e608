#include "engine/serve/training_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/caller_share.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr int64_t kMaxLosses = 1024;
constexpr int64_t kLossNanos = int64_t{24} * 3600 * 1'000'000'000;
constexpr size_t kShownSession = 8;  // characters of a session in a message

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

bool Discards(TrainingCall call) {
  return call == TrainingCall::kDiscard || call == TrainingCall::kDiscardForced || call == TrainingCall::kExpire;
}

absl::Status TrainingState::Check(TrainingCall call, const TrainingParty& party, int64_t now) const {
  const bool own = holder_ == party;
  switch (call) {
    case TrainingCall::kForward:
    case TrainingCall::kSave:
    case TrainingCall::kRestoreForced:
    case TrainingCall::kDeleteCheckpoint:
    case TrainingCall::kRead:
      return absl::OkStatus();
    case TrainingCall::kRestore:
      if (!accumulating()) return absl::OkStatus();
      return Held("ACCUMULATION_OPEN",
                  own ? "apply or discard them with OptimizerStep first, or use force"
                      : "wait for its step, or use force, which discards them",
                  now);
    case TrainingCall::kTrainStep:
    case TrainingCall::kUpdate:
      if (!accumulating()) return absl::OkStatus();
      if (own) return Held("ACCUMULATION_OPEN", "apply or discard them with OptimizerStep first", now);
      break;
    case TrainingCall::kContribution:
    case TrainingCall::kApply:
    case TrainingCall::kDiscard:
    case TrainingCall::kDiscardForced:
    case TrainingCall::kExpire:
    case TrainingCall::kReadGradients:
      if (own) return absl::OkStatus();
      break;
  }
  const Loss* loss = LossOf(party);
  if (loss != nullptr && call == TrainingCall::kReadGradients) return Lost(*loss);
  if (!accumulating()) {
    const bool discards = call == TrainingCall::kDiscard || call == TrainingCall::kDiscardForced;
    if (loss != nullptr && discards) return absl::OkStatus();  // it takes note
    if (loss != nullptr && (call == TrainingCall::kContribution || call == TrainingCall::kApply)) {
      return Lost(*loss);
    }
    if (call == TrainingCall::kContribution) return CheckRoom(party.caller, now);
    return Error(absl::StatusCode::kFailedPrecondition, "ACCUMULATION_EMPTY",
                 "no gradients are accumulated: nothing to step with or to read");
  }
  if (call == TrainingCall::kDiscardForced) return absl::OkStatus();
  if (party.caller != holder_->caller) {
    return Held("ACCUMULATION_HELD", "wait for its step; DISCARD with force ends what a program has left behind", now);
  }
  if (call == TrainingCall::kDiscard || call == TrainingCall::kReadGradients) return absl::OkStatus();
  return Held("ACCUMULATION_HELD",
              "another program of this caller; wait for its step, or DISCARD what it has left behind", now);
}

absl::Status TrainingState::Lost(const Loss& loss) {
  return Error(absl::StatusCode::kFailedPrecondition, "ACCUMULATION_LOST",
               absl::StrCat("the gradients that were accumulated are gone: ", loss.cause,
                            "; discard, then contribute all of the step anew"))
      .With("cause", loss.cause);
}

absl::Status TrainingState::Held(std::string_view reason, std::string_view what_to_do, int64_t now) const {
  const std::string session = holder_->session.substr(0, kShownSession);
  const std::string age = absl::StrCat((now - since_) / 1'000'000'000);
  return Error(absl::StatusCode::kFailedPrecondition, reason,
               absl::StrCat("caller ", holder_->caller, session.empty() ? "" : ", session ", session,
                            ", has accumulated gradients for ", age, " s: ", View(what_to_do)))
      .With("holder", holder_->caller)
      .With("session", session)
      .With("age_seconds", age);
}

const TrainingState::Loss* TrainingState::LossOf(const TrainingParty& party) const {
  const auto found =
      std::find_if(losses_.begin(), losses_.end(), [&](const Loss& loss) { return loss.party == party; });
  return found == losses_.end() ? nullptr : &*found;
}

absl::Status TrainingState::CheckRoom(const std::string& caller, int64_t now) const {
  int64_t all = 0;
  int64_t own = 0;
  for (const Loss& loss : losses_) {
    if (now - loss.at >= kLossNanos) continue;
    ++all;
    own += int{loss.party.caller == caller};
  }
  if (all < kMaxLosses && own < CallerShare(kMaxLosses, /*others=*/all > own)) return absl::OkStatus();
  return Error(
             absl::StatusCode::kResourceExhausted, "CALLER_QUOTA",
             "too many accumulations were lost in the last day, and those who lost them have not discarded: TrainStep "
             "does without one")
      .With("limit_value", std::to_string(kMaxLosses));
}

void TrainingState::Lose(std::string cause, int64_t now) {
  while (!losses_.empty() && now - losses_.front().at >= kLossNanos) losses_.pop_front();
  losses_.push_back({*holder_, std::move(cause), now});
}

void TrainingState::BeginLease(int64_t nanos, int64_t now) {
  lease_nanos_ = std::max<int64_t>(nanos, 0);
  expires_at_.reset();
  if (lease_nanos_ > 0) expires_at_ = now + lease_nanos_;
}

void TrainingState::Clear() {
  holder_.reset();
  BeginLease(0, 0);
}

void TrainingState::Apply(TrainingCall call, const TrainingParty& party, int64_t now, absl::Duration lease) {
  switch (call) {
    case TrainingCall::kContribution:
      if (!accumulating()) since_ = now;
      holder_ = party;
      BeginLease(absl::ToInt64Nanoseconds(lease), now);
      return;
    case TrainingCall::kDiscard:
    case TrainingCall::kDiscardForced:
    case TrainingCall::kRestoreForced:
      if (accumulating() && holder_ != party) {
        Lose(absl::StrCat(
                 call == TrainingCall::kRestoreForced ? "a restore or write of caller " : "a DISCARD of caller ",
                 party.caller),
             now);
      }
      if (call != TrainingCall::kRestoreForced)
        std::erase_if(losses_, [&](const Loss& loss) { return loss.party == party; });
      return Clear();
    case TrainingCall::kExpire:
      if (accumulating()) Lose("their lease is over", now);
      return Clear();
    case TrainingCall::kApply:
    case TrainingCall::kTrainStep:
    case TrainingCall::kRestore:
      return Clear();
    case TrainingCall::kForward:
    case TrainingCall::kSave:
    case TrainingCall::kDeleteCheckpoint:
    case TrainingCall::kRead:
    case TrainingCall::kUpdate:
    case TrainingCall::kReadGradients:
      return;
  }
}

TrainingState::Saved TrainingState::Save(int64_t now) const {
  Saved saved{.holder = holder_, .lease_nanos = lease_nanos_};
  if (accumulating()) saved.age_nanos = now - since_;
  for (const Loss& loss : losses_) {
    if (now - loss.at < kLossNanos) saved.losses.push_back({loss.party, loss.cause, now - loss.at});
  }
  return saved;
}

TrainingState TrainingState::Load(const Saved& saved, int64_t now) {
  TrainingState state;
  state.holder_ = saved.holder;
  state.since_ = now - saved.age_nanos;
  state.BeginLease(saved.lease_nanos, now);
  for (const Saved::Loss& loss : saved.losses) {
    state.losses_.push_back({loss.party, loss.cause, now - loss.age_nanos});
  }
  return state;
}

void TrainingState::Reconcile(bool accumulating, const TrainingParty& party, int64_t now) {
  if (!accumulating) return Clear();
  if (this->accumulating()) return;
  holder_ = party;
  since_ = now;
}

}  // namespace penstock
