#pragma once

// The thread that starts inference and evaluation beside training.

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "engine/base/thread.h"
#include "engine/base/timer_queue.h"
#include "engine/exec/outcome.h"
#include "engine/serve/call.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/inference_batch.h"
#include "engine/serve/served_calls.h"
#include "engine/serve/settlement.h"

namespace penstock {

class Clock;

// Hands inference to the stages, some calls at a time, and settles each when its run has ended.
//
// Model:     Calls of a batch run as one, and are told apart at its end. A batch that fails is run again call by call, so
//            that only those fail that are to blame; one whose outputs can't be parted is the last batch.
// Owns:      the thread `ps-infer`. What it is made of outlives it, and so does this the runs: a pipeline stops when
//            nothing is in flight.
// Threads:   its own; runs end on the thread of their last lane.
// Lifecycle: Start(); the thread ends when ServedCalls is stopping, and Join() waits for that.
class InferenceLoop {
 public:
  // `micro_batch_rows`: of batches.
  InferenceLoop(ServedCalls* calls, const CallRunner* runner, Settlement* settlement, TimerQueue* timers, Clock* clock,
                int64_t micro_batch_rows)
      : calls_(calls),
        runner_(runner),
        settlement_(settlement),
        timers_(timers),
        clock_(clock),
        micro_batch_rows_(micro_batch_rows) {}

  // Of batches from now on. While none runs.
  void SetMicroBatchRows(int64_t rows) { micro_batch_rows_ = rows; }

  void Start();
  void Join() { thread_.reset(); }

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(calls_->mu);
  // Waits until a batch may start; false: the pipeline stops.
  bool AwaitWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(calls_->mu);
  void StartRun(const BatchPointer& batch) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void CountRun(const Call& call);
  void StartAlone(const BatchPointer& batch, const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void OnBatchEnd(const BatchPointer& batch, absl::StatusOr<std::vector<RunOutcome>> outcomes)
      ABSL_LOCKS_EXCLUDED(calls_->mu);
  void OnRunEnd(const BatchPointer& batch, const CallPointer& call, absl::StatusOr<RunOutcome> outcome)
      ABSL_LOCKS_EXCLUDED(calls_->mu);
  void CountTimes(InferenceBatch& batch, const Call& call, bool counts, int64_t rows, int64_t end);
  void End(const BatchPointer& batch) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void Settle(const CallPointer& call, absl::StatusOr<RunOutcome> outcome) ABSL_LOCKS_EXCLUDED(calls_->mu);

  ServedCalls* const calls_;
  const CallRunner* const runner_;
  Settlement* const settlement_;
  TimerQueue* const timers_;
  Clock* const clock_;
  std::atomic<int64_t> micro_batch_rows_;
  const absl::Status cancelled_ = CancelledCall();                            // a copy of it takes no memory
  int64_t timer_nanos_ ABSL_GUARDED_BY(calls_->mu) = InferenceQueue::kNever;  // of what waits for others

  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
