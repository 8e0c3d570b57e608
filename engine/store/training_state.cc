#include "engine/store/training_state.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

absl::Status Refusal(std::string_view reason, std::string_view message) {
  return Error(absl::StatusCode::kFailedPrecondition, reason, message);
}

}  // namespace

absl::Status TrainingState::Check(TrainingCall call, const std::string& caller) const {
  switch (call) {
    case TrainingCall::kForward:
    case TrainingCall::kSave:
    case TrainingCall::kRestoreForced:
    case TrainingCall::kDeleteCheckpoint:
      return absl::OkStatus();
    case TrainingCall::kContribution:
      break;
    case TrainingCall::kApply:
    case TrainingCall::kDiscard:
      if (!accumulating_) return Refusal("ACCUMULATION_EMPTY", "no gradients are accumulated: nothing to step with");
      break;
    case TrainingCall::kTrainStep:
    case TrainingCall::kRestore:
      if (accumulating_) {
        return Refusal("ACCUMULATION_OPEN",
                       "gradients are accumulated: apply or discard them with OptimizerStep first");
      }
      return absl::OkStatus();
  }
  if (accumulating_ && caller != holder_) {
    return Refusal("ACCUMULATION_HELD", "another caller accumulates gradients; wait for its step");
  }
  return absl::OkStatus();
}

void TrainingState::Apply(TrainingCall call, const std::string& caller) {
  switch (call) {
    case TrainingCall::kContribution:
      accumulating_ = true;
      holder_ = caller;
      return;
    case TrainingCall::kApply:
    case TrainingCall::kDiscard:
    case TrainingCall::kTrainStep:
    case TrainingCall::kRestore:
    case TrainingCall::kRestoreForced:
      accumulating_ = false;
      holder_.clear();
      return;
    case TrainingCall::kForward:
    case TrainingCall::kSave:
    case TrainingCall::kDeleteCheckpoint:
      return;
  }
}

void TrainingState::Reconcile(bool accumulating, const std::string& caller) {
  if (!accumulating) {
    holder_.clear();
  } else if (!accumulating_) {
    holder_ = caller;
  }
  accumulating_ = accumulating;
}

}  // namespace penstock
