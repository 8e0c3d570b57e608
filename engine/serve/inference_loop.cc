#include "engine/serve/inference_loop.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/guard.h"

namespace penstock {

void InferenceLoop::Start() {
  thread_ = std::make_unique<Thread>("ps-infer", [this] { Loop(); });
}

void InferenceLoop::Loop() {
  const auto can_start = [this] {
    calls_->mu.AssertReaderHeld();
    return calls_->stopping || calls_->inference.runnable();
  };
  while (true) {
    CallPointer call;
    {
      absl::MutexLock lock(&calls_->mu);
      calls_->mu.Await(absl::Condition(&can_start));
      if (calls_->stopping) return;  // nothing waits any more
      const absl::Status taken = Guarded("the start of an inference", [&] {
        calls_->mu.AssertHeld();
        call = calls_->inference.Start();
      });
      if (!taken.ok()) continue;  // it waits as before
      calls_->UpdateQueueMetrics();
    }
    const absl::Status started = Guarded("an inference", [&] { StartRun(call); });
    if (!started.ok()) OnRunEnd(call, started);
  }
}

void InferenceLoop::StartRun(const CallPointer& call) {
  call->started_nanos = clock_->NowNanos();
  settlement_->CountStart(*call);
  // This outlives the run: Stop() waits until nothing is in flight.
  runner_->StartInference(*call,
                          [this, call](absl::StatusOr<RunOutcome> outcome) { OnRunEnd(call, std::move(outcome)); });
}

void InferenceLoop::OnRunEnd(const CallPointer& call, absl::StatusOr<RunOutcome> outcome) {
  const absl::Status settled = Guarded("an inference", [&] { Settle(call, std::move(outcome)); });
  if (!settled.ok()) Guarded("an inference", [&] { settlement_->FailRun(call, settled); }).IgnoreError();
  // Last: from here on, Stop() may return on its thread.
  std::vector<std::function<void()>> callbacks;
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->inference.EndRun(call);
    callbacks = calls_->TakeDrained();
  }
  ServedCalls::CallDrained(callbacks);
}

void InferenceLoop::Settle(const CallPointer& call, absl::StatusOr<RunOutcome> outcome) {
  Executed executed;
  if (outcome.ok()) executed.run = *std::move(outcome);
  std::string token;  // of the state that its weights came with
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->Of(call).Finish();
    token = calls_->training.TokenOf(executed.run.state);
  }
  settlement_->RecordEnd(*call, executed.run.step, outcome.status(), outcome.ok() ? &executed : nullptr);
  if (outcome.ok()) {
    settlement_->Fulfil(*call, std::move(executed), token);
  } else {
    settlement_->Fail(call, outcome.status());
  }
  settlement_->ReleaseInputs(*call);
}

}  // namespace penstock
