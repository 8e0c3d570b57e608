#pragma once

// One pipeline, served to many callers. Read this first; the parts have files of their own:
//
//   calls.h              what callers ask for            call.h              one accepted call
//   served_calls         all calls, under one lock       request_log         a retry gets the first answer
//   call_preparation     inputs and results of a call    acceptor            how a call comes in
//   training_queue       order and foreseen state        training_loop       the thread that trains
//   inference_queue      what may start next             inference_loop      the thread that starts inference
//   call_runner          what a call does                parameter_reader    copies for those who read
//   accumulation_watch   leases of accumulations         cancellation        calls that end early
//   settlement           how a call ends               call_journal        what is durable, and when
//   call_replay          calls after a restart         automatic_checkpoints   what keeps the journal short
//   open_training        what these keep of an accumulation
//   current_pipeline     the engine that stands    engine_update       how another takes its place
//   published_weights    what inference sees instead of the live weights    checkpoint_pins   checkpoints that stay
//
// A call:   accepted ──▶ queued ──▶ runs ──▶ done ──▶ settled, by exactly one of: run, deadline, cancel, drain

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/timer_queue.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/exec/pipeline.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/trace_capture.h"
#include "engine/serve/acceptor.h"
#include "engine/serve/accumulation_watch.h"
#include "engine/serve/automatic_checkpoints.h"
#include "engine/serve/call.h"
#include "engine/serve/call_journal.h"
#include "engine/serve/call_preparation.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/cancellation.h"
#include "engine/serve/checkpoint_pins.h"
#include "engine/serve/current_pipeline.h"
#include "engine/serve/engine_update.h"
#include "engine/serve/inference_loop.h"
#include "engine/serve/open_training.h"
#include "engine/serve/published_weights.h"
#include "engine/serve/served_calls.h"
#include "engine/serve/settlement.h"
#include "engine/serve/training_loop.h"

namespace penstock {

class CancelToken;
class Clock;
class MemoryLedger;
class PipelineMetrics;

// Gives one Pipeline to many callers: order, results, retries, deadlines.
//
// Model:     Calls that change state stand in one queue and run one after another, in the order in
//            which they were accepted; each has a sequence number. Inference stands in another
//            queue, and some of it runs at any time. Every call returns at once with the names of
//            handles that will hold its results. Evaluation is inference here. A call whose inputs are handles that are
//            not ready waits for them: a training call in its place, inference aside. A call out of place is refused at
//            once, as far as it can be foreseen, and is checked again when its turn comes.
// Owns:      The Pipeline, a share of the CheckpointFolder, and its parts, with the threads `ps-train` and `ps-infer`.
//            HandleStore, TimerQueue and Clock must outlive it.
// Threads:   Any method from any thread; none blocks for work or disk but Stop() and the destructor, and for the disk a
//            retry of a call of a life before.
//            Callbacks come on one of its threads, a stage's or the timers', and must not block.
// Lifecycle: Start() makes it accept. StopAccepting() or Drain(), then Stop(), then destruction.
// Fails:     At once: PIPELINE_NOT_READY, DRAINING, QUEUE_FULL and GRAPH_LIMIT (with retry_after_ms),
//            HANDLE_BUDGET, REQUEST_ID_REUSED, TENSOR_SIGNATURE, reasons of handles, ACCUMULATION_*,
//            STATE_MISMATCH. Later, in the handles: what the run failed with, and the same again
//            where an earlier call did not do what was foreseen.
class ServedPipeline {
 public:
  struct Options {
    std::string name = {};
    CheckpointOrigin origin = {};                      // as CallRunner's
    std::optional<DynamicBatchingSpec> batching = {};  // of inference
    HandleStore* handles = nullptr;
    TimerQueue* timers = nullptr;
    Clock* clock = nullptr;
    std::shared_ptr<PipelineMetrics> metrics = {};  // null: counts go nowhere
    std::shared_ptr<const void> held = {};          // as MadeEngine's
    MemoryLedger* memory = nullptr;  // where copies of its parameters are reserved; null: nobody counts them
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
    AutomaticCheckpoints::Limits journal_limits = {};
    // Told once that a call has failed for a lost rank, on any thread; must not block. May be null.
    std::function<void(const absl::Status&)> on_lost = {};
    // Published in the life before: its checkpoint stays, and nothing is answered from it until Publish().
    Publication published = {};
    // As PublishedWeights'.
    std::function<void()> on_unused_weights = {};
    // Called from the destructor when all else of it has gone: memory, threads, the lock of its journal. Must not block. May
    // be null.
    std::function<void()> on_gone = {};
  };

  // What makes a pipeline's calls durable.
  struct Durable {
    std::unique_ptr<PipelineJournal> journal = {};  // null: nothing does
    const CallRecords* records = nullptr;           // outlives the pipeline
    // The checkpoint whose state the pipeline has: what comes later is made again. Empty: it is as it was made.
    CheckpointPlace from = {};
    // Of that checkpoint, too; the pipeline has its accumulation. Absent: only whole steps were there.
    std::optional<OpenTraining> training = {};
    std::function<bool()> wanted = {};  // asked while calls are made again: no ends that; null: yes
  };

  using State = ServedCalls::State;

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
    bool paused = false;  // inference waits for an update
    int64_t samples_trained = 0;
    std::optional<double> last_loss;
    double last_measured_bubble = 0;
    bool durable = false;         // it has a journal
    absl::Status journal_health;  // not OK: calls that change state are refused until a restart
    int64_t journal_calls = 0;    // that a replay would make again
    int64_t journal_bytes = 0;    // of their inputs
    double journal_seconds = 0;   // that they took
  };

  static std::shared_ptr<ServedPipeline> Start(std::unique_ptr<Pipeline> pipeline,
                                               std::shared_ptr<CheckpointFolder> checkpoints, Options options);
  // With a journal, whose calls are made again first. Fails: as CallReplay.
  static absl::StatusOr<std::shared_ptr<ServedPipeline>> Start(std::unique_ptr<Pipeline> pipeline,
                                                               std::shared_ptr<CheckpointFolder> checkpoints,
                                                               Options options, Durable durable);
  ~ServedPipeline();

  // Runs on what is published as it is accepted, or else on the live weights; or on those of the version that it asks for.
  // Fails: also as PublishedWeights::Select().
  absl::StatusOr<Accepted> Infer(CallContext context, InferCall call);
  // Its outcome tells step and token of the weights.
  absl::StatusOr<Accepted> Evaluate(CallContext context, EvaluateCall call) {
    return acceptor_.Accept(std::move(context), std::move(call));
  }
  absl::StatusOr<Accepted> Forward(CallContext context, ForwardCall call) {
    return acceptor_.Accept(std::move(context), std::move(call));
  }
  absl::StatusOr<Accepted> Backward(CallContext context, BackwardCall call) {
    return acceptor_.Accept(std::move(context), std::move(call));
  }
  absl::StatusOr<Accepted> ForwardBackward(CallContext context, ContributionCall call) {
    return acceptor_.Accept(std::move(context), std::move(call));
  }
  absl::StatusOr<Accepted> OptimizerStep(CallContext context, StepCall call) {
    return acceptor_.Accept(std::move(context), std::move(call));
  }
  absl::StatusOr<Accepted> TrainStep(CallContext context, ContributionCall call, StepRequest step) {
    return acceptor_.Accept(std::move(context), TrainStepCall{std::move(call), std::move(step)});
  }

  // Calls of the training order without handles: the answer comes when the work is done. A retry
  // joins the first attempt or gets its answer; an attempt that failed had no effect and is
  // forgotten.
  void SaveCheckpoint(CallContext context, SaveCall save, StateCallback done) {
    acceptor_.AcceptState(std::move(context), std::move(save), std::move(done));
  }
  // Fails:     MODEL_MISMATCH for a state that a restore would refuse.
  void CopyCheckpoint(CallContext context, CopyCall copy, StateCallback done) {
    acceptor_.AcceptState(std::move(context), std::move(copy), std::move(done));
  }
  void RestoreCheckpoint(CallContext context, std::string id, bool force, StateCallback done) {
    acceptor_.AcceptState(std::move(context), RestoreCall{.id = std::move(id), .force = force}, std::move(done));
  }
  void DeleteCheckpoint(CallContext context, std::string id, StateCallback done) {
    acceptor_.AcceptState(std::move(context), DeleteCall{.id = std::move(id)}, std::move(done));
  }
  // Replaces what the tensors of ready handles name, as ReadParameters does, and the step if it is given.
  // Fails:     PARAMETER_NOT_FOUND, TENSOR_SIGNATURE; reasons of handles.
  void WriteParameters(CallContext context, WriteCall write, StateCallback done) {
    acceptor_.AcceptState(std::move(context), std::move(write), std::move(done));
  }
  // Other settings of the optimizer. Open graphs become stale. Fails: as Pipeline::UpdateOptimizer.
  void UpdateOptimizer(CallContext context, OptimizerSpec optimizer, StateCallback done) {
    acceptor_.AcceptState(std::move(context), UpdateOptimizerCall{.optimizer = std::move(optimizer)}, std::move(done));
  }
  // Another engine of the same model, in the place of the one that stands. Its memory goes with it. Fails: as
  // EngineUpdate; ACCUMULATION_OPEN.
  void Update(CallContext context, UpdateCall update, StateCallback done);
  // What inference is answered from, from now on. To prepare it, the checkpoint is pinned first. Training, evaluation and
  // the calls that are accepted go on as they are.
  absl::StatusOr<CheckpointPins::Hold> PinCheckpoint(const std::string& id) { return pins_.Pin(id); }
  void Publish(PublishedWeights::Prepared next);
  Publication publication() const { return published_.now(); }
  absl::Status CheckVersion(std::string_view version) const { return published_.Check(version); }
  absl::Status CheckReady(std::string_view version) const { return published_.CheckReady(version); }
  // Weights that were published before and on which nothing runs any more. From no thread of an engine.
  void DestroyUnusedWeights() { published_.DestroyUnused(); }
  // An automatic checkpoint when its turn comes, and what went from the journal with it. Fails: FEATURE_DISABLED; as
  // AutomaticCheckpoints::Compact().
  void CompactJournal(CallContext context, StateCallback done);
  std::vector<CheckpointInfo> ListCheckpoints() const { return checkpoints_->List(); }

  // The named tensors, as they are when the read's turn in the training order comes. Who reads the same shares one
  // copy. `cancel`: nobody wants it any more; it keeps its place in the order, and makes no copy.
  // Fails:     as ParameterReader, and as any call of the training order; gradients as TrainingState::Check() too.
  void ReadParameters(CallContext context, ReadCall read, std::shared_ptr<CancelToken> cancel) {
    acceptor_.AcceptRead(std::move(context), std::move(read), std::move(cancel));
  }

  // Whether a call of this caller with this request id has been accepted, by whatever method, and is still known.
  bool HasAccepted(const std::string& caller, const std::string& request_id) const {
    return acceptor_.HasAccepted(caller, request_id);
  }

  const std::string& name() const { return options_.name; }
  const std::string& life() const { return options_.origin.life; }  // empty: it has no journal
  CallJournal* journal() const { return journal_.get(); }           // null: the same
  // While somebody copies the journal and its checkpoints, neither goes. Without a journal they do nothing.
  void HoldJournal() const;
  void ReleaseJournal() const;
  const Pipeline& pipeline() const { return *pipeline_; }  // plan, signature, parameter_count
  Statistics statistics() const ABSL_LOCKS_EXCLUDED(calls_.mu);
  std::shared_ptr<PipelineMetrics> metrics() const { return calls_.metrics(); }
  InferenceTimes::Snapshot inference_times() const { return calls_.times.now(); }  // since its counts began
  // The last calls that have ended, in the order of their ends; some hundreds are kept.
  std::vector<CallSpan> EndedCalls() const { return settlement_.EndedCalls(); }

  // New work gets UNAVAILABLE / DRAINING; accepted work goes on.
  void StopAccepting() ABSL_LOCKS_EXCLUDED(calls_.mu);
  // StopAccepting(), and calls back when all accepted work has ended. `force` cancels what has not
  // started.
  void Drain(bool force, std::function<void()> done) ABSL_LOCKS_EXCLUDED(calls_.mu);
  // The same for a pipeline that is deleted while the daemon goes on: new work gets PIPELINE_NOT_READY, also after
  // Stop().
  void DrainToDelete(bool force, std::function<void()> done) ABSL_LOCKS_EXCLUDED(calls_.mu);
  // An automatic checkpoint of the state as it is. Before any call.
  absl::Status SaveForJournal() { return automatic_ == nullptr ? absl::OkStatus() : automatic_->SaveFirst(); }
  // The last thing that is done: cancels what has not started, waits for what runs, and saves the state if it has
  // changed since the last save or restore, as step-{n} or, if there is one, step-{n}-end. Returns nothing if there was
  // nothing to save. Accumulated gradients are in no checkpoint. `cancel` gives the save up.
  using LastSaveCallback = std::function<void(absl::StatusOr<std::optional<CheckpointInfo>>)>;
  struct LastSave {
    bool force = true;           // false: nothing is cancelled, and Resume() may follow
    bool empty_journal = false;  // with a journal: an automatic checkpoint instead, which empties it
    bool first = false;          // as CompactCall's
  };
  void SaveLast(LastSave save, std::shared_ptr<CancelToken> cancel, LastSaveCallback done)
      ABSL_LOCKS_EXCLUDED(calls_.mu);
  void SaveLast(std::shared_ptr<CancelToken> cancel, LastSaveCallback done) {
    SaveLast(LastSave(), std::move(cancel), std::move(done));
  }
  // The end of one that is unloaded. New work gets PIPELINE_NOT_READY; when all accepted work has ended, the state is saved as
  // what it is made again from, and the journal emptied. Then StopUnloaded(), or ResumeLoaded() where that fails. Only with a
  // journal.
  void SaveToUnload(std::function<void(const absl::Status&)> done) ABSL_LOCKS_EXCLUDED(calls_.mu);
  void ResumeLoaded() ABSL_LOCKS_EXCLUDED(calls_.mu) { ResumeFrom(State::kUnloading); }
  // Stop(), and no graph can be used any more; values stay. From no thread of its own.
  void StopUnloaded() ABSL_LOCKS_EXCLUDED(calls_.mu);
  // What would keep a last save from emptying the journal, as things are; OK without a journal. Fails: as
  // AutomaticCheckpoints::CheckCompact().
  absl::Status CheckEmptyJournal() const {
    return automatic_ == nullptr ? absl::OkStatus() : automatic_->CheckCompact();
  }
  // Ends a drain that cancelled nothing: new work is accepted again.
  void Resume() ABSL_LOCKS_EXCLUDED(calls_.mu) { ResumeFrom(State::kDraining); }
  // Cancels what has not started, waits for what runs, joins the threads. From no thread of its own.
  void Stop() ABSL_LOCKS_EXCLUDED(calls_.mu);
  // Stop() of a pipeline that has lost a rank. What waits or runs ends with `why`, or with the loss that was noticed
  // before; of that, what stands in the journal is left there, to be made again. Its graphs can't be used any more.
  void StopLost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(calls_.mu);
  // The checkpoint that was saved or restored last; empty: none, or it is deleted.
  std::string last_checkpoint() const ABSL_LOCKS_EXCLUDED(calls_.mu);
  // After Stop(): removes the checkpoints.
  absl::Status PurgeCheckpoints() { return checkpoints_->Purge(); }

 private:
  ServedPipeline(std::unique_ptr<Pipeline> pipeline, std::shared_ptr<CheckpointFolder> checkpoints, Options options,
                 Durable durable, std::shared_ptr<const void> held, std::shared_ptr<PipelineMetrics> metrics);
  // Of an engine that begins to count.
  void BeginCounts(PipelineMetrics& metrics, const Pipeline& pipeline) const;
  absl::Status Replay(int64_t from, std::function<bool()> wanted);
  // Who ends a call that the journal did not take.
  void OnRefused(const CallPointer& call, const absl::Status& error);

  void DrainAs(State state, bool force, std::function<void()> done) ABSL_LOCKS_EXCLUDED(calls_.mu);

  void ResumeFrom(State state) ABSL_LOCKS_EXCLUDED(calls_.mu);
  void StaleGraphs(const absl::Status& why) ABSL_LOCKS_EXCLUDED(calls_.mu);

  // Returns whether there is something to save; `done` is told of that later. An error comes without it.
  absl::StatusOr<bool> EnqueueLastSave(const LastSave& save, const std::shared_ptr<CancelToken>& cancel,
                                       const LastSaveCallback& done) ABSL_LOCKS_EXCLUDED(calls_.mu);

  const std::shared_ptr<const void> gone_;  // goes last: calls on_gone
  const Options options_;
  std::unique_ptr<CurrentPipeline> pipeline_;
  const std::shared_ptr<CheckpointFolder> checkpoints_;
  CheckpointPins pins_;
  PublishedWeights published_;
  // Each uses some of those before it.
  ServedCalls calls_;
  CallRunner runner_;
  Settlement settlement_;
  const std::unique_ptr<CallJournal> journal_;             // null: there is none
  const std::unique_ptr<AutomaticCheckpoints> automatic_;  // the same
  AccumulationWatch watch_;
  Cancellation cancellation_;
  const CallPreparation preparation_;
  Acceptor acceptor_;
  InferenceLoop inference_;
  EngineUpdate update_;
  TrainingLoop training_;

  absl::Mutex stop_mu_;  // one Stop() at a time
  bool stopped_ ABSL_GUARDED_BY(stop_mu_) = false;
};

}  // namespace penstock
