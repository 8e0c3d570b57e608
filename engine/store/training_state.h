#pragma once

// What may follow what in the training of one pipeline, as a value without locks.

#include <string>

#include "absl/status/status.h"

namespace penstock {

// The calls that the state machine tells apart.
enum class TrainingCall {
  kContribution,
  kApply,
  kDiscard,
  kTrainStep,
  kForward,
  kSave,
  kRestore,
  kRestoreForced,
  kDeleteCheckpoint
};

// CLEAN, or ACCUMULATING gradients for one caller. (Stepping and restoring are calls that run; others queue.)
//
// Fails:     Check(): FAILED_PRECONDITION / ACCUMULATION_EMPTY, ACCUMULATION_OPEN, ACCUMULATION_HELD.
class TrainingState {
 public:
  // May `caller` make this call now?
  absl::Status Check(TrainingCall call, const std::string& caller) const;
  // The call has been made, and has succeeded.
  void Apply(TrainingCall call, const std::string& caller);
  // What the engine says after a call of `caller` that may have failed: without gradients the state is CLEAN; gradients that
  // nobody held are this caller's.
  void Reconcile(bool accumulating, const std::string& caller);

  bool accumulating() const { return accumulating_; }
  const std::string& holder() const { return holder_; }

 private:
  bool accumulating_ = false;
  std::string holder_;  // empty when clean
};

}  // namespace penstock
