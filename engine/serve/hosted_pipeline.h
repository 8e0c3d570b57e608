#pragma once

// One pipeline, served to many callers. Read this first; the parts have files of their own:
// training_state (what may follow what), training_queue and inference_queue (bounds and order),
// request_log (a retry gets the first answer), call_inputs (tensors and handles), work (one call).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/exec/pipeline.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/trace_capture.h"
#include "engine/serve/calls.h"

namespace penstock {

class CancelToken;
class CheckpointFolder;
class Clock;
class PipelineMetrics;
class TimerQueue;

// Gives one Pipeline to many callers: order, results, retries, deadlines.
//
// Model:     Calls that change state stand in one queue and run one after another, in the order in
//            which they were accepted; each has a sequence number. Inference stands in another
//            queue, and some of it runs at any time. Every call answers at once with the names of
//            handles that will hold its results. A call whose inputs are handles that are not ready
//            waits for them: a training call in its place, inference aside.
//            The training state (clean, or accumulating for one caller) is foreseen at acceptance,
//            as if all accepted calls succeeded, so that a call out of place is refused at once; it is
//            checked again when the call's turn comes.
// Owns:      The Pipeline, the CheckpointFolder, and two threads, `ps-train` and `ps-infer`.
//            HandleStore, TimerQueue and Clock must outlive it.
// Threads:   Any method from any thread; none blocks for work or disk but Stop() and the destructor.
//            Callbacks come on one of its threads, a stage's or the timers', and must not block.
// Lifecycle: Start() makes it accept. StopAccepting() or Drain(), then Stop(), then destruction.
// Fails:     At once: PIPELINE_NOT_READY, DRAINING, QUEUE_FULL and GRAPH_LIMIT (with retry_after_ms),
//            HANDLE_BUDGET, REQUEST_ID_REUSED, TENSOR_SIGNATURE, reasons of handles, ACCUMULATION_*,
//            STATE_MISMATCH. Later, in the handles: what the run failed with, and the same again
//            where an earlier call did not do what was foreseen.
class HostedPipeline {
 public:
  struct Options {
    std::string name = {};
    // Goes into checkpoints. What stands behind a blank, the digest of an exported program, must be that of a checkpoint
    // which is restored.
    std::string spec_digest = {};
    HandleStore* handles = nullptr;
    TimerQueue* timers = nullptr;
    Clock* clock = nullptr;
    std::shared_ptr<PipelineMetrics> metrics = {};  // null: counts go nowhere
    std::shared_ptr<const void> claim = {};         // of the memory that it takes; goes with it
    int64_t train_queue_calls = 256;
    int64_t train_queue_bytes = int64_t{1} << 30;
    int64_t infer_queue_calls = 1024;
    int64_t infer_queue_bytes = int64_t{256} << 20;
    int infer_in_flight = 16;  // enough for the gaps of a step on eight stages
    int open_graphs = 16;
    absl::Duration infer_timeout = absl::Seconds(60);
    absl::Duration forward_timeout = absl::Minutes(10);
    int64_t request_log_entries = 100'000;
    absl::Duration request_log_time = absl::Hours(24);
  };

  enum class State { kReady, kDraining, kStopped };

  struct Statistics {
    State state = State::kReady;
    int64_t step = 0;
    std::string state_token;
    bool accumulating = false;
    int64_t open_graphs = 0;
    int64_t snapshot_bytes = 0;     // of copies of the parameters that somebody reads
    int64_t train_queue_calls = 0;  // waiting; not the one that runs
    int64_t infer_queue_calls = 0;
    int64_t running = 0;  // calls, of both kinds
    int64_t samples_trained = 0;
    std::optional<double> last_loss;
    double last_measured_bubble = 0;
  };

  static std::shared_ptr<HostedPipeline> Start(std::unique_ptr<Pipeline> pipeline,
                                               std::unique_ptr<CheckpointFolder> checkpoints, Options options);
  virtual ~HostedPipeline() = default;

  virtual absl::StatusOr<Accepted> Infer(CallContext context, InferCall call) = 0;
  virtual absl::StatusOr<Accepted> Forward(CallContext context, ForwardCall call) = 0;
  virtual absl::StatusOr<Accepted> Backward(CallContext context, BackwardCall call) = 0;
  virtual absl::StatusOr<Accepted> ForwardBackward(CallContext context, ContributionCall call) = 0;
  virtual absl::StatusOr<Accepted> OptimizerStep(CallContext context, StepCall call) = 0;
  virtual absl::StatusOr<Accepted> TrainStep(CallContext context, ContributionCall call, StepCall step) = 0;

  // Calls of the training order without handles: the answer comes when the work is done. A retry
  // joins the first attempt or gets its answer; an attempt that failed had no effect and is
  // forgotten. An empty id means step-{n}.
  using StateCallback = std::function<void(absl::StatusOr<StateAnswer>)>;
  virtual void SaveCheckpoint(CallContext context, std::string id, StateCallback done) = 0;
  virtual void RestoreCheckpoint(CallContext context, std::string id, bool force, StateCallback done) = 0;
  // Replaces what the tensors of ready handles name, as ReadParameters does, and the step if it is given.
  // Fails:     PARAMETER_NOT_FOUND, TENSOR_SIGNATURE; reasons of handles.
  struct WriteCall {
    std::vector<HandleName> handles = {};
    std::optional<int64_t> step = {};
    bool force = false;
  };
  virtual void WriteParameters(CallContext context, WriteCall call, StateCallback done) = 0;
  virtual void DeleteCheckpoint(CallContext context, std::string id, StateCallback done) = 0;
  virtual std::vector<CheckpointInfo> ListCheckpoints() const = 0;

  // The named tensors, all if empty, as they are between two training calls. Who reads the same step shares one copy.
  // Fails:     NOT_FOUND / PARAMETER_NOT_FOUND naming it; RESOURCE_EXHAUSTED / QUEUE_FULL; as ParameterSnapshots.
  using SnapshotCallback = std::function<void(absl::StatusOr<std::shared_ptr<const ParameterSnapshot>>)>;
  virtual void ReadParameters(std::vector<std::string> names, bool with_optimizer, SnapshotCallback done) = 0;

  // Whether a call of this caller with this request id has been accepted, by whatever method, and is still known.
  virtual bool HasAccepted(const std::string& caller, const std::string& request_id) const = 0;

  virtual const std::string& name() const = 0;
  virtual const Pipeline& pipeline() const = 0;  // plan, signature, parameter_count
  virtual Statistics statistics() const = 0;
  virtual std::shared_ptr<PipelineMetrics> metrics() const = 0;

  // The last calls that have ended, in the order of their ends; some hundreds are kept.
  virtual std::vector<CallSpan> EndedCalls() const = 0;

  // New work gets UNAVAILABLE / DRAINING; accepted work goes on.
  virtual void StopAccepting() = 0;
  // StopAccepting(), and calls back when all accepted work has ended. `force` cancels what has not
  // started.
  virtual void Drain(bool force, std::function<void()> done) = 0;
  // The last thing that is done: cancels what has not started, waits for what runs, and saves the state if it has changed since
  // the last save or restore, as step-{n} or, if there is one, step-{n}-end. Answers nothing if there was nothing to save.
  // Accumulated gradients are in no checkpoint. `cancel` gives the save up.
  using LastSaveCallback = std::function<void(absl::StatusOr<std::optional<CheckpointInfo>>)>;
  virtual void SaveLast(std::shared_ptr<CancelToken> cancel, LastSaveCallback done) = 0;
  // Cancels what has not started, waits for what runs, joins the threads. From no thread of its own.
  virtual void Stop() = 0;
  // After Stop(): removes the checkpoints.
  virtual absl::Status PurgeCheckpoints() = 0;
};

}  // namespace penstock
