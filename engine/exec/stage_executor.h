#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "engine/exec/lane.h"
#include "engine/exec/lane_accounts.h"
#include "engine/exec/lane_step.h"
#include "engine/exec/run.h"
#include "engine/exec/stage_run.h"
#include "engine/transport/transport.h"

namespace penstock {

// Interprets the action list of one lane in one run: the only code that knows what an action means.
//
// Model:     a position in the list. Poll() goes past receives whose message is there and says whether the next compute
//            action can run; Execute() runs it, hands what it has made to the stages of the same lane, and runs the
//            sends behind it. Nothing ever blocks. The OPT of a lane's stages end its list, and the lane goes over them
//            once per part of the step (lane_step.h). What an action took is counted when the lane's timeline knows it,
//            and before that the lane does not leave.
// Owns:      a share of the run. The lane outlives it.
// Threads:   the device's thread only; the run is shared with the other lanes.
// Lifecycle: made when the run starts, which opens the step on the lane; once Poll() returns kDone the lane has left
//            the run and the executor is dropped. The last lane of a run calls its `done`.
// Fails:     the first error is recorded in the run, with stage, micro_batch and action; no action starts after it.
//            What fails on an accelerator behind the host is an error of the action that the device has begun last.
//            Poll() and Execute() throw nothing: an exception ends the run as an error (guard.h).
class StageExecutor {
 public:
  StageExecutor(std::shared_ptr<Run> run, Lane* lane);

  enum class Readiness { kReady, kWaiting, kDone };
  Readiness Poll();
  void Execute();
  // Whether it must look again, without being woken, at what its device has done since.
  bool awaits_device() const { return lane_->timeline.unread() || step_.awaits_norms(); }
  // Blocks until the device has done the oldest of it; false if there is none. For serial mode.
  bool AwaitDevice();

  Lane& lane() { return *lane_; }
  const Run& run() const { return *run_; }
  LaneIndex lane_index() const { return LaneIndex(lane_->index); }  // of its list
  // Null behind the last.
  const Action* Next() const { return position_ < actions_.size() ? &actions_[position_] : nullptr; }

 private:
  Readiness Look();
  void RunAction(const Action& action);
  // What is recorded of an action when its device begins and ends it.
  struct Launched {
    Action action;
    size_t position = 0;
    LaneStep::Part part = LaneStep::Part::kNorms;  // of an optimizer step
    bool followed = false;                         // by the run's progress
  };
  void Begun(const Launched& launched, int64_t at);
  void Ended(const Launched& launched, int64_t at);
  bool Receive(const Action& action);  // false: not there yet
  absl::Status Compute(const Action& action);
  void Perform(const Action& action);
  void EndStepPart();
  void Watch(PassEvent::When when, const Action& action, const Pass& pass) const;
  void HandOver(const Action& action);
  bool TakeFromLeader(const Action& action);  // false: something is not there yet
  void SendToLeader(const Action& action);
  void Send(const Action& action);
  void Fail(absl::Status status, const Action& action) { Fail(std::move(status), action, step_.at()); }
  void Fail(absl::Status status, const Action& action, std::optional<FaultPoint> at);
  void FailLate(absl::Status status);
  void Leave();
  void CloseLane();
  void Wait(StageState reason, std::optional<MessageKey> awaited = std::nullopt);

  StageRun* Find(int stage);  // null: another lane's
  StageRun& StageOf(const Action& action);
  MessageKey KeyOf(const Action& action) const;

  const std::shared_ptr<Run> run_;
  Lane* const lane_;
  const std::vector<Action>& actions_;
  std::vector<StageRun> stages_;  // of the lane, in their order
  size_t position_ = 0;
  size_t optimizer_position_ = 0;  // of the first OPT
  bool started_ = false;           // has run an action
  LaneStep step_;
  LaneAccounts accounts_;
  bool left_ = false;
  int untold_ = 0;                 // begins and ends of actions whose times are not known yet
  bool device_failed_ = false;     // nothing more will be known of them
  std::optional<Launched> begun_;  // the last action that is known to have begun, and when
  int64_t action_begin_ = 0;
  const int64_t begin_nanos_;             // when the lane got its list
  std::optional<StageState> waiting_;     // what was last reported
  absl::flat_hash_set<MessageKey> came_;  // from the leader
};

}  // namespace penstock
