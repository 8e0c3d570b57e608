#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/observe/stage_state.h"
#include "engine/observe/state_clock.h"
#include "engine/transport/transport.h"

namespace penstock {

// Decides which of its states a lane is in, and sets its clock.
//
// Model:     several things are true at once: an action runs, a step is open, inference runs are open, a client is
//            waited for. The first that holds wins, in the order of the fields below; the clock gets the winner.
//            On a device whose times are known late, the host runs ahead: states are queued in their order, and the
//            clock gets each one when those before it have their times. A wait that the host saw begin while the device
//            still worked begins when that work ends.
// Owns:      nothing; the StateClock must outlive it.
// Threads:   any method from any thread: the device's thread reports actions and waits, a sender reports arrivals, the
//            pipeline opens and closes runs.
class LaneState {
 public:
  LaneState(StateClock* clock, Clock* time) : clock_(clock), time_(time) {}

  // An action begins. Inference counts as filling when a step is open. Returns the time.
  int64_t BeginAction(StageState state);
  // It has ended: `host` until the next wait is known. Returns the time.
  int64_t EndAction();

  // The same on a device whose times are known late: Passed() brings the time of the oldest of them.
  void LaunchAction(StageState state);
  void LaunchEnd();
  void Passed(int64_t at);

  // A training run is open from when the lane has its list until the last lane has finished.
  void OpenStep();
  void CloseStep();
  // Why the next action of the open step has not begun; `awaited` is the message that would end the wait, if one would.
  void WaitInStep(StageState reason, std::optional<MessageKey> awaited = std::nullopt);
  // A message has come: if the lane waited for it, it now waits for its device (or is about to begin).
  void Arrived(const MessageKey& key, bool device_busy);
  // The device has begun or ended an action of another lane.
  void DeviceTaken(bool taken);

  void OpenInference();
  void CloseInference();
  // What the lane waits for outside of runs: no_work, wait_client, paused, setup, checkpoint.
  void SetIdle(StageState state);

 private:
  void BeginLocked(StageState state, std::optional<int64_t> at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(std::optional<int64_t> at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Without a time: it comes later.
  void RefreshLocked(std::optional<int64_t> at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void QueueLocked(StageState state, std::optional<int64_t> at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  StateClock* const clock_;
  Clock* const time_;

  absl::Mutex mu_;
  std::optional<StageState> running_ ABSL_GUARDED_BY(mu_);
  bool step_open_ ABSL_GUARDED_BY(mu_) = false;
  StageState step_wait_ ABSL_GUARDED_BY(mu_) = StageState::kHost;
  std::optional<MessageKey> awaited_ ABSL_GUARDED_BY(mu_);
  int inferences_ ABSL_GUARDED_BY(mu_) = 0;
  StageState idle_ ABSL_GUARDED_BY(mu_) = StageState::kSetup;

  struct Change {
    StageState state;
    std::optional<int64_t> at;
  };
  std::deque<Change> late_ ABSL_GUARDED_BY(mu_);  // the first has no time yet
};

}  // namespace penstock
