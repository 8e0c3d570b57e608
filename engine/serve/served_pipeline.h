#pragma once

// One pipeline, served to many callers. Read this first; the parts have files of their own:
//
//   calls.h            what callers ask for            call.h              one accepted call
//   training_queue     order and foreseen state        inference_queue     what may start next
//   call_runner        what a call does                settlement          how it ends
//   request_log        a retry gets the first answer   parameter_reader    reads between two calls
//
// served_accept.cc takes calls in, served_pipeline.cc runs and ends them, served_end.cc brings the pipeline to its end.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/thread.h"
#include "engine/base/timer_queue.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/exec/pipeline.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/trace_capture.h"
#include "engine/serve/call.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/inference_queue.h"
#include "engine/serve/parameter_reader.h"
#include "engine/serve/request_log.h"
#include "engine/serve/settlement.h"
#include "engine/serve/training_queue.h"

namespace penstock {

class CancelToken;
class Clock;
class MemoryClaims;
class PipelineMetrics;

// Gives one Pipeline to many callers: order, results, retries, deadlines.
//
// Model:     Calls that change state stand in one queue and run one after another, in the order in
//            which they were accepted; each has a sequence number. Inference stands in another
//            queue, and some of it runs at any time. Every call returns at once with the names of
//            handles that will hold its results. A call whose inputs are handles that are not ready
//            waits for them: a training call in its place, inference aside. A call out of place is refused
//            at once, as far as it can be foreseen, and is checked again when its turn comes.
// Owns:      The Pipeline, a share of the CheckpointFolder, and two threads, `ps-train` and `ps-infer`.
//            HandleStore, TimerQueue and Clock must outlive it.
// Threads:   Any method from any thread; none blocks for work or disk but Stop() and the destructor.
//            Callbacks come on one of its threads, a stage's or the timers', and must not block.
//            Nothing of the store that may call back is called under mu_: its callbacks may need mu_.
// Lifecycle: Start() makes it accept. StopAccepting() or Drain(), then Stop(), then destruction.
// Fails:     At once: PIPELINE_NOT_READY, DRAINING, QUEUE_FULL and GRAPH_LIMIT (with retry_after_ms),
//            HANDLE_BUDGET, REQUEST_ID_REUSED, TENSOR_SIGNATURE, reasons of handles, ACCUMULATION_*,
//            STATE_MISMATCH. Later, in the handles: what the run failed with, and the same again
//            where an earlier call did not do what was foreseen.
class ServedPipeline : public std::enable_shared_from_this<ServedPipeline> {
 public:
  struct Options {
    std::string name = {};
    CheckpointOrigin origin = {};  // as CallRunner's
    HandleStore* handles = nullptr;
    TimerQueue* timers = nullptr;
    Clock* clock = nullptr;
    std::shared_ptr<PipelineMetrics> metrics = {};  // null: counts go nowhere
    std::shared_ptr<const void> claim = {};         // of the memory that it takes; goes with it
    MemoryClaims* memory = nullptr;                 // where copies of its parameters claim; null: nobody counts them
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

  static std::shared_ptr<ServedPipeline> Start(std::unique_ptr<Pipeline> pipeline,
                                               std::shared_ptr<CheckpointFolder> checkpoints, Options options);
  ~ServedPipeline();

  absl::StatusOr<Accepted> Infer(CallContext context, InferCall call);
  absl::StatusOr<Accepted> Forward(CallContext context, ForwardCall call);
  absl::StatusOr<Accepted> Backward(CallContext context, BackwardCall call);
  absl::StatusOr<Accepted> ForwardBackward(CallContext context, ContributionCall call);
  absl::StatusOr<Accepted> OptimizerStep(CallContext context, StepCall call);
  absl::StatusOr<Accepted> TrainStep(CallContext context, ContributionCall call, StepRequest step);

  // Calls of the training order without handles: the answer comes when the work is done. A retry
  // joins the first attempt or gets its answer; an attempt that failed had no effect and is
  // forgotten.
  void SaveCheckpoint(CallContext context, SaveCall save, StateCallback done);
  // Fails:     MODEL_MISMATCH for a state that a restore would refuse.
  void CopyCheckpoint(CallContext context, CopyCall copy, StateCallback done);
  void RestoreCheckpoint(CallContext context, std::string id, bool force, StateCallback done);
  void DeleteCheckpoint(CallContext context, std::string id, StateCallback done);
  // Replaces what the tensors of ready handles name, as ReadParameters does, and the step if it is given.
  // Fails:     PARAMETER_NOT_FOUND, TENSOR_SIGNATURE; reasons of handles.
  void WriteParameters(CallContext context, WriteCall call, StateCallback done);
  std::vector<CheckpointInfo> ListCheckpoints() const { return checkpoints_->List(); }

  // The named tensors, all if empty, as they are between two training calls. Who reads the same step shares one copy.
  // Fails:     as ParameterReader; RESOURCE_EXHAUSTED / QUEUE_FULL; DRAINING.
  using SnapshotCallback = std::function<void(absl::StatusOr<std::shared_ptr<const ParameterSnapshot>>)>;
  void ReadParameters(std::vector<std::string> names, bool with_optimizer, SnapshotCallback done)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Whether a call of this caller with this request id has been accepted, by whatever method, and is still known.
  bool HasAccepted(const std::string& caller, const std::string& request_id) const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string& name() const { return options_.name; }
  const Pipeline& pipeline() const { return *pipeline_; }  // plan, signature, parameter_count
  Statistics statistics() const ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<PipelineMetrics> metrics() const { return options_.metrics; }
  // The last calls that have ended, in the order of their ends; some hundreds are kept.
  std::vector<CallSpan> EndedCalls() const { return settlement_.EndedCalls(); }

  // New work gets UNAVAILABLE / DRAINING; accepted work goes on.
  void StopAccepting() ABSL_LOCKS_EXCLUDED(mu_);
  // StopAccepting(), and calls back when all accepted work has ended. `force` cancels what has not
  // started.
  void Drain(bool force, std::function<void()> done) ABSL_LOCKS_EXCLUDED(mu_);
  // The last thing that is done: cancels what has not started, waits for what runs, and saves the state if it has changed since
  // the last save or restore, as step-{n} or, if there is one, step-{n}-end. Returns nothing if there was nothing to save.
  // Accumulated gradients are in no checkpoint. `cancel` gives the save up.
  using LastSaveCallback = std::function<void(absl::StatusOr<std::optional<CheckpointInfo>>)>;
  void SaveLast(std::shared_ptr<CancelToken> cancel, LastSaveCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels what has not started, waits for what runs, joins the threads. From no thread of its own.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // After Stop(): removes the checkpoints.
  absl::Status PurgeCheckpoints() { return checkpoints_->Purge(); }

 private:
  class Producer;

  // Which handles a call needs, and how large its outputs will be.
  struct Results {
    bool outcome = false;
    bool outputs = false;
    bool graph = false;
    int64_t output_bytes = 0;
  };

  ServedPipeline(std::unique_ptr<Pipeline> pipeline, std::shared_ptr<CheckpointFolder> checkpoints, Options options);

  // --- Acceptance (served_accept.cc).
  using Prepare = std::function<absl::StatusOr<Results>(Call&)>;
  // `prepare` pins and checks the inputs and says which results there will be; it runs without the lock.
  absl::StatusOr<Accepted> Accept(const CallPointer& call, const Prepare& prepare) ABSL_LOCKS_EXCLUDED(mu_);
  void AcceptState(const CallPointer& call, StateCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Accepted> AcceptContribution(CallContext context, Request request, std::vector<InputSource> inputs,
                                              std::optional<InputSource> target);
  absl::Status PinInputs(Call& call, std::vector<InputSource> inputs, const std::string& field) const;
  absl::StatusOr<std::optional<RecordedAnswer>> Recorded(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Admit(const Call& call, bool handles_reserved) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status ReserveHandles(const CallPointer& call, const Results& results);
  void Enqueue(const CallPointer& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Refused(absl::Status status) const;

  // --- Running (served_pipeline.cc).
  void TrainLoop() ABSL_LOCKS_EXCLUDED(mu_);
  void RunTraining(const CallPointer& call) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Executed> Execute(Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  void Read(const ReadRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  void WatchAccumulation(const Call& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireAccumulation() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Graph> Watched(std::shared_ptr<Graph> graph);
  void UpdateIdleReason() ABSL_LOCKS_EXCLUDED(mu_);
  void InferLoop() ABSL_LOCKS_EXCLUDED(mu_);
  void StartInference(const CallPointer& call) ABSL_LOCKS_EXCLUDED(mu_);
  void OnInferred(const CallPointer& call, absl::StatusOr<ForwardOutcome> outcome) ABSL_LOCKS_EXCLUDED(mu_);
  void SettleInferred(const CallPointer& call, const absl::StatusOr<ForwardOutcome>& outcome) ABSL_LOCKS_EXCLUDED(mu_);

  // --- The end of a call (served_pipeline.cc).
  void OnInputsReady(const CallPointer& call) ABSL_LOCKS_EXCLUDED(mu_);
  void OnDeadline(const CallPointer& call) ABSL_LOCKS_EXCLUDED(mu_);
  CancelEffect Cancel(const CallPointer& call) ABSL_LOCKS_EXCLUDED(mu_);
  void Abandon(const CallPointer& call) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveQueued(const CallPointer& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<CallPointer> RemoveAllQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Settles the handles, or calls back those who wait, with an error. The call must be kDone or fall to nobody else.
  void SettleFailed(const CallPointer& call, const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);
  // The end of a run that an exception has left: what it has not settled fails.
  void FailRun(const CallPointer& call, const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);
  void AnswerState(const Call& call, absl::StatusOr<StateAnswer> answer) ABSL_LOCKS_EXCLUDED(mu_);
  void ReleaseInputs(Call& call);
  // The call is over, as far as its caller's place goes. Before its handles settle, so that the caller's next call finds it so.
  void EndPlace(Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  void UpdateQueueMetrics() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- The end of the pipeline (served_end.cc).
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Of calls that RemoveAllQueued() has returned: one whose end throws keeps no other from ending.
  void SettleCancelled(const std::vector<CallPointer>& calls) ABSL_LOCKS_EXCLUDED(mu_);
  void NotifyIfDrained() ABSL_LOCKS_EXCLUDED(mu_);
  void EnqueueLastSave(const std::shared_ptr<CancelToken>& cancel, const LastSaveCallback& done)
      ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr size_t kMaxReads = 64;

  const Options options_;
  std::unique_ptr<Pipeline> pipeline_;
  const std::shared_ptr<CheckpointFolder> checkpoints_;
  CallRunner runner_;
  ParameterReader reader_;
  Settlement settlement_;
  // Graphs that exist, wherever they are held; shared with their deleters, which may outlive this.
  const std::shared_ptr<std::atomic<int64_t>> graphs_alive_ = std::make_shared<std::atomic<int64_t>>(0);

  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kReady;
  RequestLog<RecordedAnswer> log_ ABSL_GUARDED_BY(mu_);
  TrainingQueue training_ ABSL_GUARDED_BY(mu_);
  InferenceQueue inference_ ABSL_GUARDED_BY(mu_);
  std::deque<ReadRequest> reads_ ABSL_GUARDED_BY(mu_);
  int64_t reads_running_ ABSL_GUARDED_BY(mu_) = 0;
  bool idle_reason_stale_ ABSL_GUARDED_BY(mu_) = false;
  TimerQueue::TimerId accumulation_timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;  // of its lease
  std::vector<std::function<void()>> drained_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Statistics statistics_ ABSL_GUARDED_BY(mu_);  // the fields that runs change

  absl::Mutex stop_mu_;  // one Stop() at a time
  std::unique_ptr<Thread> train_thread_;
  std::unique_ptr<Thread> infer_thread_;
};

}  // namespace penstock
