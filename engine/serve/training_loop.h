#pragma once

// The thread that trains.

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "engine/base/job_thread.h"
#include "engine/base/thread.h"
#include "engine/exec/pipeline.h"
#include "engine/serve/accumulation_watch.h"
#include "engine/serve/automatic_checkpoints.h"
#include "engine/serve/call.h"
#include "engine/serve/call_journal.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/served_calls.h"
#include "engine/serve/settlement.h"

namespace penstock {

class Clock;
class EngineUpdate;
class TimerQueue;

// Runs the calls of the training order, one after another, and tells the stages what they wait for.
//
// Model:     a save has had its turn when the state is copied. The copy is written beside the calls behind it, one at a
//            time; calls that look at checkpoints, or change them, wait for that. So it is with automatic checkpoints.
// Owns:      the threads `ps-train` and `ps-save`. What it is made of outlives it; graphs may outlive it.
// Threads:   its own.
// Lifecycle: Start(); the thread ends when ServedCalls is stopping, and Join() waits for that.
class TrainingLoop {
 public:
  TrainingLoop(ServedCalls* calls, CallRunner* runner, Pipeline* pipeline, Settlement* settlement,
               AccumulationWatch* watch, CallJournal* journal, AutomaticCheckpoints* automatic, EngineUpdate* update,
               TimerQueue* timers, Clock* clock)
      : calls_(calls),
        runner_(runner),
        pipeline_(pipeline),
        settlement_(settlement),
        watch_(watch),
        journal_(journal),
        automatic_(automatic),
        update_(update),
        timers_(timers),
        clock_(clock) {}

  // Makes a call again that stands in the journal. Before Start(), on one thread.
  absl::StatusOr<Executed> Repeat(const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void Start();
  void Join() {
    thread_.reset();
    writer_.reset();
  }

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(calls_->mu);
  void Run(const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  absl::StatusOr<Executed> Execute(Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Of a pipeline that has lost a rank: whatever the call failed with, it has had no effect and is left as it was, to be
  // made again.
  absl::StatusOr<Executed> LookForLoss(absl::StatusOr<Executed> executed) const ABSL_LOCKS_EXCLUDED(calls_->mu);
  // What must stand in checkpoints before the call runs.
  absl::Status PrepareJournal(const Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Begins an automatic checkpoint, if it is time for one.
  void SaveAfter(const Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Waits until no save is being written.
  void AwaitWritten() const ABSL_LOCKS_EXCLUDED(calls_->mu);
  // What is left to do of a call that was executed.
  static absl::StatusOr<Executed> Finish(absl::StatusOr<Executed> executed);
  // Hands a save to the other thread, which writes and ends it.
  void WriteBeside(const CallPointer& call, absl::StatusOr<Executed> executed, const std::string& token)
      ABSL_LOCKS_EXCLUDED(calls_->mu);
  void Write(const CallPointer& call, absl::StatusOr<Executed> executed, const std::string& token)
      ABSL_LOCKS_EXCLUDED(calls_->mu);
  void EndWriting() ABSL_LOCKS_EXCLUDED(calls_->mu);
  // The end of a run that an exception has left.
  void FailRun(const CallPointer& call, const absl::Status& error) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Tells how a run went; of a call in the journal, when that is durable.
  void Settle(const CallPointer& call, absl::StatusOr<Executed> executed, const std::string& token)
      ABSL_LOCKS_EXCLUDED(calls_->mu);
  void SettleNow(const CallPointer& call, absl::StatusOr<Executed> executed, const std::string& token)
      ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Lets the stages know when the last graph is gone, by whatever way: consumed, released, expired.
  std::shared_ptr<Graph> Watched(std::shared_ptr<Graph> graph);
  void UpdateIdleReason() ABSL_LOCKS_EXCLUDED(calls_->mu);

  ServedCalls* const calls_;
  CallRunner* const runner_;
  Pipeline* const pipeline_;
  Settlement* const settlement_;
  AccumulationWatch* const watch_;
  CallJournal* const journal_;             // null: there is none
  AutomaticCheckpoints* const automatic_;  // the same
  EngineUpdate* const update_;
  TimerQueue* const timers_;
  Clock* const clock_;
  // The number of graphs that exist; shared with their deleters.
  const std::shared_ptr<std::atomic<int64_t>> graphs_alive_ = std::make_shared<std::atomic<int64_t>>(0);

  bool idle_reason_stale_ ABSL_GUARDED_BY(calls_->mu) = false;

  std::unique_ptr<JobThread> writer_;
  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
