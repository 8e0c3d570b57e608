#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/base/clock.h"
#include "engine/exec/lane_state.h"
#include "engine/exec/run.h"
#include "engine/exec/stage.h"
#include "engine/observe/metrics.h"
#include "engine/transport/transport.h"

namespace penstock {

// One stage at work on one device, with what it needs to run lists and to be seen.
struct Lane {
  Stage* stage = nullptr;
  Transport* transport = nullptr;
  LaneMetrics* metrics = nullptr;
  DeviceStreams* streams = nullptr;
  LaneState state;
  Clock* clock = nullptr;

  Lane(Stage* stage, Transport* transport, LaneMetrics* metrics, DeviceStreams* streams, Clock* clock)
      : stage(stage),
        transport(transport),
        metrics(metrics),
        streams(streams),
        state(&metrics->state, clock),
        clock(clock) {}
};

// Interprets the action list of one lane in one run: the only code that knows what an action means.
//
// Model:     a position in the list. Poll() goes past receives whose message is there and says whether the next compute
//            action can run; Execute() runs it and the sends behind it. Nothing ever blocks.
// Owns:      a share of the run. The lane outlives it.
// Threads:   the device's thread only; the run is shared with the other lanes.
// Lifecycle: made when the run starts, which opens the step on the lane; once Poll() answers kDone the lane has left the
//            run and the executor is dropped. The last lane of a run calls its `done`.
// Fails:     the first error is recorded in the run, with stage, micro_batch and action; no action starts after it.
class StageExecutor {
 public:
  StageExecutor(std::shared_ptr<Run> run, Lane* lane);

  enum class Readiness { kReady, kWaiting, kDone };
  Readiness Poll();
  void Execute();

  Lane& lane() { return *lane_; }
  const Run& run() const { return *run_; }
  int rank() const { return lane_->stage->index(); }  // of its list
  const Action* Next() const;                         // null behind the last

 private:
  bool Receive(const Action& action);  // false: not there yet
  absl::Status Compute(const Action& action);
  void Perform(const Action& action);
  void ComputeForward(const Action& action);
  void ComputeRecompute(const Action& action);
  void ComputeBackward(const Action& action);
  void ComputeStep();
  bool StepMayGoOn() const;
  void EndStepPart();
  bool Granted() const;
  void Send(const Action& action);
  void Keep(const Action& action, Batch message);
  void Fail(absl::Status status, const Action& action);
  void Leave();
  void Wait(StageState reason, std::optional<MessageKey> awaited = std::nullopt);

  PassContext ContextOf(int microbatch, bool graph, bool recomputing) const;
  LossContext LossOf(int microbatch) const;
  MessageKey KeyOf(const Action& action) const;

  const std::shared_ptr<Run> run_;
  Lane* const lane_;
  const std::vector<Action>& actions_;
  size_t position_ = 0;
  bool started_ = false;  // has run an action
  enum class Step { kShareTies, kNorms, kApply };
  Step step_ = Step::kNorms;  // the part of OPT that comes next
  bool left_ = false;
  int inflight_ = 0;                                // forwards of this run whose backward has not run
  std::optional<StageState> waiting_;               // what was last reported
  std::vector<Batch> received_;                     // activations or gradients by micro-batch, until used
  std::vector<Batch> outgoing_;                     // by micro-batch, until sent
  std::vector<std::vector<Batch>> outgoing_skips_;  // skip values or their gradients by micro-batch and port
};

}  // namespace penstock
