#pragma once

// The end of a call: its handles settle, its caller and observer are told, metrics and log lines record it.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/exec/outcome.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/trace_capture.h"
#include "engine/serve/call.h"
#include "engine/serve/call_records.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/served_calls.h"

namespace penstock {

class Clock;
class TimerQueue;

// Tells everybody outside of the pipeline how a call went.
//
// Model:     Each call is settled by whoever made it kDone, once; a handle that has settled already stays as it is. The
//            caller's place goes first, so that the caller's next call finds it free.
// Owns:      The last calls that have ended. ServedCalls, HandleStore, TimerQueue and Clock must outlive it.
// Threads:   Any; under no lock of the caller, for stores, callers and observers may call back.
class Settlement {
 public:
  Settlement(std::string name, ServedCalls* calls, HandleStore* handles, const CheckpointFolder* checkpoints,
             TimerQueue* timers, Clock* clock)
      : name_(std::move(name)),
        calls_(calls),
        handles_(handles),
        checkpoints_(checkpoints),
        timers_(timers),
        clock_(clock) {}

  // Fails, or cancels, the call's handles, or calls back those who wait, with the error and the ids of the call. The
  // call must be kDone or fall to nobody else. One that has not run is over with that.
  void Fail(const CallPointer& call, const absl::Status& error) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // The end of a run that an exception has left: what it has not settled fails.
  void FailRun(const CallPointer& call, const absl::Status& error) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // The graphs that a call that went well has left without use.
  void Invalidate(const Call& call, const std::vector<HandleId>& stale_graphs);
  // Fulfils the handles of a call, or calls back those who wait.
  void Fulfil(Call& call, Executed executed, const std::string& token) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // What is more than a handle may hold fails it by name.
  void FulfilValues(const HandleId& id, NamedValues values);
  // What Fulfil() would tell, without tensors and graphs; and a failure.
  CallAnswer AnswerOf(const Call& call, const Executed& executed, const std::string& token) const;
  CallAnswer AnswerOf(const Call& call, const absl::Status& error) const;
  // A recorded answer with all that is known of its checkpoint now.
  StateAnswer Completed(StateAnswer answer) const;
  // Gives the caller's place back, unless the call waits or runs.
  void EndPlace(Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Drops the call's inputs and deadline. Nothing reads them afterwards.
  void ReleaseInputs(Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);

  // A run begins: counts how long the call has waited.
  void CountStart(const Call& call);
  // A run has ended, well or not: counts it, keeps how it went, and tells the call's observer. What fails in that is
  // logged; the call has gone as it has. `step`: as trace records have it, or 0. `executed`: null where the run failed.
  void RecordEnd(const Call& call, int64_t step, const absl::Status& status, const Executed* executed);

  // The last calls that have ended, in the order of their ends; some hundreds are kept.
  std::vector<CallSpan> EndedCalls() const ABSL_LOCKS_EXCLUDED(mu_);
  // What log lines of a run name.
  std::vector<std::pair<std::string, std::string>> LogFieldsOf(const Call& call, int64_t step) const;

 private:
  static constexpr size_t kMaxEndedCalls = 512;

  void CountEnd(const Call& call, const absl::Status& status, const Executed* executed);
  // Keeps how a call went, and tells its observer, if it has one.
  void ReportEnd(const Call& call, int64_t step, const absl::Status& status);
  // Of a call that was never accepted, for it is not durable: the log forgets it. Returns whether it was.
  bool ForgetUnlessDurable(Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  absl::Status FailHandles(const Call& call, const absl::Status& error);
  void FulfilHandles(const Call& call, Executed executed, const std::string& token);
  void AnswerState(const Call& call, absl::StatusOr<StateAnswer> answer) ABSL_LOCKS_EXCLUDED(calls_->mu);
  static void AnswerRead(const Call& call, absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> snapshot);
  void LogCheckpoint(const Call& call, const absl::Status& status, const Executed* executed) const;

  std::shared_ptr<PipelineMetrics> metrics() const { return calls_->metrics(); }

  const std::string name_;
  ServedCalls* const calls_;
  HandleStore* const handles_;
  const CheckpointFolder* const checkpoints_;
  TimerQueue* const timers_;
  Clock* const clock_;

  mutable absl::Mutex mu_;
  std::deque<CallSpan> ended_ ABSL_GUARDED_BY(mu_);  // newest last, at most kMaxEndedCalls
};

}  // namespace penstock
