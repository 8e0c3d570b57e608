#pragma once

// The states of the daemon: starting, ready, draining, stopped.

#include <array>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// Where the daemon is. Draining has parts: it says so, then refuses new work, then closes.
enum class LifecycleState { kStarting, kReady, kAnnouncing, kRefusing, kClosing, kStopped };
inline constexpr int kLifecycleStateCount = 6;

// What may follow what; a test reads it. Any state but the last may be followed by kClosing: a start
// that fails, a second signal. An abort of the drain leads back to kReady.
inline constexpr std::array<std::array<bool, kLifecycleStateCount>, kLifecycleStateCount> kLifecycleTransitions = {{
    // to: starting ready announcing refusing closing stopped
    {{false, true, false, false, true, false}},   // starting
    {{false, false, true, false, true, false}},   // ready
    {{false, true, false, true, true, false}},    // announcing
    {{false, true, false, false, true, false}},   // refusing
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

}  // namespace penstock
