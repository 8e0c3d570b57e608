#pragma once

// The training order of one pipeline, as a value without locks: which calls wait, which runs, what state they lead to.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/queue_bounds.h"
#include "engine/handles/handle_name.h"
#include "engine/serve/call.h"
#include "engine/serve/training_state.h"

namespace penstock {

struct Executed;  // call_runner.h

// Calls that change state, one after another, in the order in which they were accepted.
//
// Model:     A queue, and the call that runs. The training state is foreseen at acceptance, as if all accepted calls
//            succeeded; it is checked again when the call's turn comes. Versions tell what changed: of weights and
//            gradients together (in the token), of the weights alone, and which of those a checkpoint holds.
// Threads:   Those of ServedCalls, whose lock is held around every call.
// Units:     Monotonic nanoseconds.
// Fails:     CheckNew: QUEUE_FULL, CALLER_QUOTA, reasons of TrainingState, STATE_MISMATCH. CheckTurn: the last two, and
//            SPEC_INVALID for gradients of inputs that the forward did not prepare for.
class TrainingQueue {
 public:
  // `token_prefix`: of this life of the pipeline. `step`: that it starts with.
  TrainingQueue(QueueBounds::Limits limits, std::string token_prefix, int64_t step);

  absl::Status CheckNew(const Call& call, int64_t now) const;
  // Gives the call its sequence number and the step of now.
  void Add(const CallPointer& call);
  void Remove(const CallPointer& call);  // before it runs

  // Whether the first call has its inputs.
  bool runnable() const { return !waiting_.empty() && waiting_.front()->guarded_.inputs_ready; }
  // Takes the first call; it runs.
  CallPointer Start();
  absl::Status CheckTurn(const Call& call, int64_t now) const;
  // What the running call has done. Returns the graphs that have become stale.
  std::vector<HandleId> Note(const Call& call, const Executed& executed, int64_t now);
  // Sees to it that the state is what the engine says, whether the running call failed or not.
  void Reconcile(const Call& call, bool accumulating, int64_t now);
  void EndRun() { running_ = nullptr; }

  // The call that discards the accumulation when its lease is over: none if its lease is not over, or its holder's next
  // call came in time.
  std::optional<TrainingParty> Expired(int64_t now) const;

  const std::deque<CallPointer>& waiting() const { return waiting_; }
  bool idle() const { return waiting_.empty() && running_ == nullptr; }
  bool running() const { return running_ != nullptr; }
  const TrainingState& state() const { return state_; }
  int64_t step() const { return step_; }
  int64_t weights_version() const { return weights_version_; }
  bool saved() const { return weights_version_ == saved_version_; }  // what was just made has nothing to save
  // The state's number, which rises with every call that changes it, and its token; and that of another number.
  int64_t version() const { return version_; }
  std::string token() const { return TokenOf(version_); }
  std::string TokenOf(int64_t version) const;

 private:
  TrainingState Foreseen(int64_t now) const;
  absl::Status WrongToken(const Call& call) const;
  bool Runs() const { return running_ != nullptr && running_->guarded_.phase == Call::Phase::kRunning; }

  const std::string token_prefix_;
  std::deque<CallPointer> waiting_;
  QueueBounds bounds_;
  CallPointer running_;
  TrainingState state_;
  int64_t sequence_ = 0;
  int64_t step_ = 0;                        // finished steps
  int64_t version_ = 0;                     // of the weights and gradients
  int64_t weights_version_ = 0;             // rises with steps, restores and written parameters
  int64_t saved_version_ = 0;               // that of the last one; what was just made has nothing to save
  std::string saved_checkpoint_;            // the one that holds saved_version_; empty: none
  std::vector<HandleId> graphs_;            // made since the weights last changed
  std::vector<HandleId> graphs_to_inputs_;  // of these, those that reach back to the inputs
};

}  // namespace penstock
