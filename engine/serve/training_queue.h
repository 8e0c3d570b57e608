#pragma once

// The training order of one pipeline, as a value without locks: which calls wait, which runs, what state they lead to.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
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
class Graph;

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
  // What a queue goes on from.
  struct Origin {
    std::string token_prefix = {};  // of this life of the pipeline
    int64_t step = 0;
    int64_t sequence = 0;  // of the last call there was
    int64_t version = 0;   // of the last one that changed the state
    TrainingState state = {};
    bool at_boundary = true;
  };

  TrainingQueue(QueueBounds::Limits limits, Origin origin);

  absl::Status CheckNew(const Call& call, int64_t now) const;
  // Gives the call its sequence number and the step of now.
  void Add(const CallPointer& call);
  void Remove(const CallPointer& call);  // before it runs

  // Whether the first call has its inputs, and is durable where it must be.
  bool runnable() const {
    return !waiting_.empty() && waiting_.front()->guarded_.inputs_ready && waiting_.front()->guarded_.durable;
  }
  // Takes the first call; it runs.
  CallPointer Start();
  absl::Status CheckTurn(const Call& call, int64_t now) const;
  // What the running call has done. Returns the graphs that have become stale.
  std::vector<HandleId> Note(const Call& call, const Executed& executed, int64_t now);
  // A save has written a copy of the weights of that version.
  void NoteSaved(int64_t weights_version, const std::string& checkpoint);
  // Sees to it that the state is what the engine says, whether the running call failed or not.
  void Reconcile(const Call& call, bool accumulating, int64_t now);
  void EndRun() { running_ = nullptr; }

  // The call that discards the accumulation when its lease is over: none if its lease is not over, or its holder's next
  // call came in time.
  std::optional<TrainingParty> Expired(int64_t now) const;

  // The sequence of the Forward that a Backward goes with, if its graph can still be used; else 0.
  int64_t ForwardOf(const Call& call) const;
  // The graph has another handle from now on. Returns whether a Backward can still use it.
  bool Rename(const HandleId& from, const HandleId& to);
  // Of a call that is made again, which was never in this queue.
  void SkipTo(int64_t sequence) { sequence_ = std::max(sequence_, sequence); }
  // Whether the state is the effect of whole steps: nothing is accumulated, no graph can be used, draws begin anew, and
  // nobody must be told of a loss.
  bool at_boundary() const { return at_boundary_ && !state_.accumulating() && !state_.has_losses(); }
  // Whether a Backward can still use a graph.
  bool graphs_open() const;
  // The handles of all graphs that are known: nothing can use them any more.
  std::vector<HandleId> TakeGraphs();
  // The checkpoint that was saved or restored last, if it has not been deleted; else empty.
  const std::string& last_checkpoint() const { return saved_checkpoint_; }
  // Of the last call that ran: all before it have ended.
  int64_t ended_sequence() const { return ended_sequence_; }

  const std::deque<CallPointer>& waiting() const { return waiting_; }
  bool idle() const { return waiting_.empty() && running_ == nullptr; }
  bool running() const { return running_ != nullptr; }
  const TrainingState& state() const { return state_; }
  int64_t step() const { return step_; }
  int64_t weights_version() const { return weights_version_; }
  bool saved() const { return weights_version_ == saved_version_; }  // what was just made has nothing to save
  // The state's number, the sequence of the last call that changed it, and its token; and that of another number.
  int64_t version() const { return version_; }
  std::string token() const { return TokenOf(version_); }
  std::string TokenOf(int64_t version) const { return TokenOf(token_prefix_, version); }
  static std::string TokenOf(const std::string& prefix, int64_t version);

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
  int64_t ended_sequence_ = 0;
  int64_t step_ = 0;              // finished steps
  int64_t version_ = 0;           // of the weights and gradients: a call's sequence
  int64_t weights_version_ = 0;   // rises with steps, restores and written parameters
  int64_t saved_version_ = 0;     // that of the last one; what was just made has nothing to save
  std::string saved_checkpoint_;  // the one that holds saved_version_; empty: none
  bool at_boundary_ = true;
  // Made since the weights last changed.
  struct OpenGraph {
    HandleId id;
    int64_t sequence = 0;                   // of its Forward
    bool to_inputs = false;                 // it reaches back to the inputs
    std::weak_ptr<const Graph> graph = {};  // none: a Backward has used it up
  };
  std::vector<OpenGraph> graphs_;
};

}  // namespace penstock
