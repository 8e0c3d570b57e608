#pragma once

// The thread that starts inference and evaluation beside training.

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "engine/base/thread.h"
#include "engine/exec/outcome.h"
#include "engine/serve/call.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/served_calls.h"
#include "engine/serve/settlement.h"

namespace penstock {

class Clock;

// Hands inference to the stages, some calls at a time, and settles each when its run has ended.
//
// Owns:      the thread `ps-infer`. What it is made of outlives it, and so does this the runs: a pipeline stops when
//            nothing is in flight.
// Threads:   its own; runs end on the thread of their last lane.
// Lifecycle: Start(); the thread ends when ServedCalls is stopping, and Join() waits for that.
class InferenceLoop {
 public:
  InferenceLoop(ServedCalls* calls, const CallRunner* runner, Settlement* settlement, Clock* clock)
      : calls_(calls), runner_(runner), settlement_(settlement), clock_(clock) {}

  void Start();
  void Join() { thread_.reset(); }

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(calls_->mu);
  void StartRun(const CallPointer& call) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void OnRunEnd(const CallPointer& call, absl::StatusOr<RunOutcome> outcome) ABSL_LOCKS_EXCLUDED(calls_->mu);
  void Settle(const CallPointer& call, absl::StatusOr<RunOutcome> outcome) ABSL_LOCKS_EXCLUDED(calls_->mu);

  ServedCalls* const calls_;
  const CallRunner* const runner_;
  Settlement* const settlement_;
  Clock* const clock_;

  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
