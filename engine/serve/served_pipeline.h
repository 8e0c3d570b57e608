#pragma once

// How a HostedPipeline works inside. served_pipeline.cc accepts calls and ends them, served_calls.cc turns each method into
// a call, served_training.cc runs the training order, served_inference.cc runs inference beside it, served_end.cc brings the
// pipeline to its end.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/queue_bounds.h"
#include "engine/base/thread.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/serve/hosted_pipeline.h"
#include "engine/serve/parameter_snapshots.h"
#include "engine/serve/request_log.h"
#include "engine/serve/training_state.h"
#include "engine/serve/work.h"

namespace penstock {

// The only implementation of HostedPipeline.
//
// Model:     Each call is a Work. It is queued, runs, is done; the phase changes under mu_, and whoever makes it kDone
//            settles its handles, outside of mu_. A training call is at the head of train_queue_ before it runs; an
//            inference is in infer_queue_ from acceptance, and in infer_ready_ once its inputs are there.
// Threads:   Nothing of the store that may call back is called under mu_: its callbacks may need mu_.
class ServedPipeline : public HostedPipeline, public std::enable_shared_from_this<ServedPipeline> {
 public:
  ServedPipeline(std::unique_ptr<Pipeline> pipeline, std::unique_ptr<CheckpointFolder> checkpoints, Options options);
  ~ServedPipeline() override;
  void StartThreads();

  absl::StatusOr<Accepted> Infer(CallContext context, InferCall call) override;
  absl::StatusOr<Accepted> Forward(CallContext context, ForwardCall call) override;
  absl::StatusOr<Accepted> Backward(CallContext context, BackwardCall call) override;
  absl::StatusOr<Accepted> ForwardBackward(CallContext context, ContributionCall call) override;
  absl::StatusOr<Accepted> OptimizerStep(CallContext context, StepCall call) override;
  absl::StatusOr<Accepted> TrainStep(CallContext context, ContributionCall call, StepCall step) override;
  void SaveCheckpoint(CallContext context, std::string id, StateCallback done) override;
  void RestoreCheckpoint(CallContext context, std::string id, bool force, StateCallback done) override;
  void WriteParameters(CallContext context, WriteCall call, StateCallback done) override;
  void DeleteCheckpoint(CallContext context, std::string id, StateCallback done) override;
  std::vector<CheckpointInfo> ListCheckpoints() const override;
  void ReadParameters(std::vector<std::string> names, bool with_optimizer, SnapshotCallback done) override;

  bool HasAccepted(const std::string& caller, const std::string& request_id) const override ABSL_LOCKS_EXCLUDED(mu_);
  const std::string& name() const override { return options_.name; }
  const Pipeline& pipeline() const override { return *pipeline_; }
  Statistics statistics() const override ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<PipelineMetrics> metrics() const override { return options_.metrics; }
  std::vector<CallSpan> EndedCalls() const override ABSL_LOCKS_EXCLUDED(mu_);
  void StopAccepting() override ABSL_LOCKS_EXCLUDED(mu_);
  void Drain(bool force, std::function<void()> done) override ABSL_LOCKS_EXCLUDED(mu_);
  void SaveLast(std::shared_ptr<CancelToken> cancel, LastSaveCallback done) override ABSL_LOCKS_EXCLUDED(mu_);
  void Stop() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status PurgeCheckpoints() override;

 private:
  class Producer;
  using WorkPointer = std::shared_ptr<Work>;

  // A read of parameters that waits for the gap between two training calls.
  struct SnapshotRequest {
    std::vector<std::string> names;
    bool with_optimizer = false;
    SnapshotCallback done;
  };

  // Which handles a call needs, and how large its outputs will be.
  struct Results {
    bool outcome = false;
    bool outputs = false;
    bool graph = false;
    int64_t output_bytes = 0;
  };

  // What a training run left.
  struct Executed {
    RunOutcome run;
    std::shared_ptr<Graph> graph;
    std::optional<CheckpointInfo> checkpoint;
    bool replaced_state = false;  // restored: as good as a step for graphs and tokens
  };

  // --- Acceptance (served_pipeline.cc, served_calls.cc).
  absl::StatusOr<Accepted> Contribute(CallContext context, ContributionCall call, Work work);
  // `prepare` pins and checks the inputs and says which results there will be; it runs without the lock.
  absl::StatusOr<Accepted> Accept(WorkPointer work, const std::function<absl::StatusOr<Results>(Work&)>& prepare)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::optional<RecordedAnswer>> Recorded(const Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Admit(const Work& work, bool handles_reserved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  TrainingState Foreseen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ReserveHandles(const WorkPointer& work, const Results& results);
  void Enqueue(const WorkPointer& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddReady(const WorkPointer& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  QueueBounds& BoundsOf(const Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return work.training.has_value() ? train_bounds_ : infer_bounds_;
  }
  void AcceptState(WorkPointer work, StateCallback done) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckTensors(Work& work) const;
  int64_t ExpectedOutputBytes(const Work& work) const;
  absl::Status Refused(absl::Status status) const;

  // --- The end of a call (served_pipeline.cc).
  void OnInputsReady(const WorkPointer& work) ABSL_LOCKS_EXCLUDED(mu_);
  void OnWorkDeadline(const WorkPointer& work) ABSL_LOCKS_EXCLUDED(mu_);
  CancelEffect CancelWork(const WorkPointer& work) ABSL_LOCKS_EXCLUDED(mu_);
  void AbandonWork(const WorkPointer& work) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveQueued(const WorkPointer& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<WorkPointer> RemoveAllQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Settles the handles, or answers the waiting callers, with an error. The work must be kDone or fall to nobody else.
  void SettleFailed(const WorkPointer& work, const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);
  void AnswerState(const WorkPointer& work, absl::StatusOr<StateAnswer> answer) ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps how a call went, and tells its observer, if it has one. `step`: as trace records have it, or 0.
  void TellEnded(const Work& work, int64_t step, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // What log lines of its run name.
  std::vector<std::pair<std::string, std::string>> LogFieldsOf(const Work& work, int64_t step) const;
  void LetGo(Work& work);
  // The call is over, as far as its caller's place goes. Before its handles settle, so that the caller's next call finds it so.
  void EndPlace(Work& work) ABSL_LOCKS_EXCLUDED(mu_);
  void NotifyIfDrained() ABSL_LOCKS_EXCLUDED(mu_);
  void EnqueueLastSave(const std::shared_ptr<CancelToken>& cancel, const LastSaveCallback& done)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateQueueMetrics() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string StateToken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- Running (served_training.cc, served_inference.cc).
  void TrainLoop() ABSL_LOCKS_EXCLUDED(mu_);
  void RunTraining(const WorkPointer& work) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteVersions(const Work& work, const Executed& executed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Executed> Execute(Work& work) ABSL_LOCKS_EXCLUDED(mu_);
  void WatchAccumulation(const Work& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireAccumulation() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Executed> ExecuteRestore(Work& work);
  absl::StatusOr<Executed> ExecuteWrite(Work& work);
  absl::Status CheckInputGradients(const Work& work) const ABSL_LOCKS_EXCLUDED(mu_);
  void SettleExecuted(const WorkPointer& work, Executed executed, const std::string& token,
                      const std::vector<HandleId>& stale_graphs);
  std::shared_ptr<Graph> Watched(std::shared_ptr<Graph> graph);
  absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> TakeSnapshot(const SnapshotRequest& request)
      ABSL_LOCKS_EXCLUDED(mu_);
  void UpdateIdleReason() ABSL_LOCKS_EXCLUDED(mu_);
  void CountRun(const Work& work, const absl::Status& status, const RunOutcome* run);
  void InferLoop() ABSL_LOCKS_EXCLUDED(mu_);
  WorkPointer NextInference() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartInference(const WorkPointer& work) ABSL_LOCKS_EXCLUDED(mu_);
  void FulfilValues(const HandleId& id, const NamedValues& values);
  void OnInferred(const WorkPointer& work, absl::StatusOr<ForwardOutcome> outcome) ABSL_LOCKS_EXCLUDED(mu_);
  void SettleInferred(const WorkPointer& work, const absl::StatusOr<ForwardOutcome>& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  // The end of a run that an exception has left: what it has not settled fails.
  void FailRun(const WorkPointer& work, const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr size_t kEndedCalls = 512;
  static constexpr size_t kMostSnapshotRequests = 64;

  const Options options_;
  const std::string token_prefix_;  // of this life of the pipeline
  std::unique_ptr<Pipeline> pipeline_;
  const std::unique_ptr<CheckpointFolder> checkpoints_;
  ParameterSnapshots snapshots_made_;  // the training thread's

  // Graphs that exist, wherever they are held; shared with their deleters, which may outlive this.
  const std::shared_ptr<std::atomic<int64_t>> graphs_alive_ = std::make_shared<std::atomic<int64_t>>(0);

  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kReady;
  RequestLog<RecordedAnswer> log_ ABSL_GUARDED_BY(mu_);
  TrainingState training_ ABSL_GUARDED_BY(mu_);
  int64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t version_ ABSL_GUARDED_BY(mu_) = 0;           // of the weights and gradients; in the state token
  int64_t weights_version_ ABSL_GUARDED_BY(mu_) = 0;   // rises with steps, restores and written parameters
  int64_t saved_version_ ABSL_GUARDED_BY(mu_) = 0;     // that of the last one; what was just made has nothing to save
  std::string saved_checkpoint_ ABSL_GUARDED_BY(mu_);  // the one that holds saved_version_; empty: none
  int64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<WorkPointer> train_queue_ ABSL_GUARDED_BY(mu_);
  QueueBounds train_bounds_ ABSL_GUARDED_BY(mu_);
  WorkPointer train_running_ ABSL_GUARDED_BY(mu_);
  std::deque<WorkPointer> infer_queue_ ABSL_GUARDED_BY(mu_);  // not started, in order of acceptance
  // Of these, those that can start: by priority, and equal ones as they became ready.
  std::deque<WorkPointer> infer_ready_ ABSL_GUARDED_BY(mu_);
  QueueBounds infer_bounds_ ABSL_GUARDED_BY(mu_);
  std::set<WorkPointer> infer_running_ ABSL_GUARDED_BY(mu_);
  std::deque<SnapshotRequest> snapshots_ ABSL_GUARDED_BY(mu_);
  int64_t snapshots_running_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<HandleId> graphs_ ABSL_GUARDED_BY(mu_);            // made since the weights last changed
  std::vector<HandleId> graphs_to_inputs_ ABSL_GUARDED_BY(mu_);  // of these, those that reach back to the inputs
  bool idle_reason_stale_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> drained_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<CallSpan> ended_ ABSL_GUARDED_BY(mu_);  // newest last, at most kEndedCalls
  Statistics statistics_ ABSL_GUARDED_BY(mu_);       // the fields that runs change

  absl::Mutex stop_mu_;  // one Stop() at a time
  std::unique_ptr<Thread> train_thread_;
  std::unique_ptr<Thread> infer_thread_;
};

}  // namespace penstock
