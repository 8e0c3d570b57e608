#pragma once

// The states of the daemon: starting, ready, draining, stopped.

#include <array>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace penstock {

// Where the daemon is. Draining has parts: it says so, then refuses new work, then closes.
enum class LifecycleState { kStarting, kReady, kAnnouncing, kRefusing, kClosing, kStopped };
inline constexpr int kLifecycleStateCount = 6;

// What may follow what; a test reads it. Any state but the last may be followed by kClosing: a start
// that fails, a second signal.
inline constexpr std::array<std::array<bool, kLifecycleStateCount>, kLifecycleStateCount> kLifecycleTransitions = {{
    // to: starting ready announcing refusing closing stopped
    {{false, true, false, false, true, false}},   // starting
    {{false, false, true, false, true, false}},   // ready
    {{false, false, false, true, true, false}},   // announcing
    {{false, false, false, false, true, false}},  // refusing
    {{false, false, false, false, false, true}},  // closing
    {{false, false, false, false, false, false}}  // stopped
}};

// "starting", "ready", "draining", "stopped".
std::string_view NameOf(LifecycleState state);

// Tells everyone who must know where the daemon is.
//
// Model:     one state, and observers that hear each change in order.
// Threads:   Advance() from one thread at a time; state() from any. Observers run on the thread that
//            advances, not under mu_.
// Fails:     a transition that is not in the table is a bug.
class Lifecycle {
 public:
  using Observer = std::function<void(LifecycleState)>;

  // Observers hear the present state at once. Before the first Advance().
  void Observe(Observer observer);
  void Advance(LifecycleState next) ABSL_LOCKS_EXCLUDED(mu_);
  LifecycleState state() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::vector<Observer> observers_;

  mutable absl::Mutex mu_;
  LifecycleState state_ ABSL_GUARDED_BY(mu_) = LifecycleState::kStarting;
};

// Lets the drain wait for what comes first: its time, the end of the work or of the save, or an operator in a hurry.
//
// Threads:   Any.
class DrainSignal {
 public:
  // A second signal: skip to the end.
  void Hurry() ABSL_LOCKS_EXCLUDED(mu_);
  // All accepted work has ended.
  void WorkEnded() ABSL_LOCKS_EXCLUDED(mu_);

  // The last save has ended, and whether the state is safe.
  void SaveEnded(bool saved) ABSL_LOCKS_EXCLUDED(mu_);

  bool hurried() const ABSL_LOCKS_EXCLUDED(mu_);
  bool work_ended() const ABSL_LOCKS_EXCLUDED(mu_);
  bool save_ended() const ABSL_LOCKS_EXCLUDED(mu_);
  bool saved() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for `time`, or until someone is in a hurry.
  void AwaitTime(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the work has ended, at most `time`, or until someone is in a hurry.
  void AwaitWork(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the save has ended, at most `time`, or until someone is in a hurry.
  void AwaitSave(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, but an operator in a hurry does not end the wait: the save has been given up.
  void AwaitSaveInAnyCase(absl::Duration time) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool WorkEndedOrHurried() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return work_ended_ || hurried_; }
  bool SaveEndedOrHurried() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return save_ended_ || hurried_; }

  mutable absl::Mutex mu_;
  bool hurried_ ABSL_GUARDED_BY(mu_) = false;
  bool work_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool save_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool saved_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
