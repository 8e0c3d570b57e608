#pragma once

// What a drain waits for, and how it may be changed while it runs.

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace penstock {

enum class DrainPhase { kAnnounce, kFinish, kSave, kClose };

// Lets the drain wait for what comes first: its time, the end of the work or of the save, an operator in a hurry, or one
// who wants the daemon to go on.
//
// Model:     One drain. It becomes final at its end at the latest; an abort comes before that or not at all.
// Threads:   Any.
class DrainSignal {
 public:
  // A second signal: skip to the end.
  void Hurry() ABSL_LOCKS_EXCLUDED(mu_);
  // All accepted work has ended.
  void WorkEnded() ABSL_LOCKS_EXCLUDED(mu_);
  // The last save has ended, and whether the state is safe.
  void SaveEnded(bool saved) ABSL_LOCKS_EXCLUDED(mu_);

  // The daemon shall go on. False: it is final.
  bool Abort() ABSL_LOCKS_EXCLUDED(mu_);
  // No abort from now on. False: it has been aborted, and nobody is in a hurry.
  bool MakeFinal() ABSL_LOCKS_EXCLUDED(mu_);
  // The journals shall be empty at the end. False: the saves have begun without that.
  bool AskForUpgrade() ABSL_LOCKS_EXCLUDED(mu_);
  // Where the drain is now. Returns whether it is for an upgrade, which is settled from kSave on.
  bool Enter(DrainPhase phase) ABSL_LOCKS_EXCLUDED(mu_);

  struct View {
    DrainPhase phase = DrainPhase::kAnnounce;
    bool for_upgrade = false;
    bool final = false;
  };
  View view() const ABSL_LOCKS_EXCLUDED(mu_);
  bool hurried() const ABSL_LOCKS_EXCLUDED(mu_);
  bool aborted() const ABSL_LOCKS_EXCLUDED(mu_);
  bool work_ended() const ABSL_LOCKS_EXCLUDED(mu_);
  bool save_ended() const ABSL_LOCKS_EXCLUDED(mu_);
  bool saved() const ABSL_LOCKS_EXCLUDED(mu_);

  // Each ends at an abort or a second signal, too.
  void AwaitTime(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitWork(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitSave(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  // The save has been given up: only its end, or the end of the time, ends the wait.
  void AwaitSaveInAnyCase(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  // The same after an abort, which has all the time until somebody is in a hurry.
  void AwaitSaveOrHurry() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool Interrupted() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return hurried_ || aborted_; }
  bool WorkEndedOrInterrupted() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return work_ended_ || Interrupted(); }
  bool SaveEndedOrInterrupted() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return save_ended_ || Interrupted(); }
  bool SaveEndedOrHurried() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return save_ended_ || hurried_; }

  mutable absl::Mutex mu_;
  View view_ ABSL_GUARDED_BY(mu_);
  bool hurried_ ABSL_GUARDED_BY(mu_) = false;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  bool work_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool save_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool saved_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
