#include "engine/serve/inference_loop.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/serve/batch_rows.h"
#include "engine/serve/pipeline_errors.h"

namespace penstock {

void InferenceLoop::Start() {
  thread_ = std::make_unique<Thread>("ps-infer", [this] { Loop(); });
}

bool InferenceLoop::AwaitWork() {
  const auto may_go_on = [this] {
    calls_->mu.AssertReaderHeld();
    return calls_->stopping || calls_->inference.runnable() || calls_->inference.due_nanos() < timer_nanos_;
  };
  while (true) {
    calls_->mu.Await(absl::Condition(&may_go_on));
    if (calls_->stopping) return false;  // nothing waits any more
    if (calls_->inference.runnable()) return true;
    const int64_t due = calls_->inference.due_nanos();
    if (const int64_t now = clock_->NowNanos(); due <= now) {
      calls_->inference.Reached(now);
      continue;
    }
    timer_nanos_ = due;
    const absl::Status timed = Guarded("a batch of inference", [&] {
      timers_->Add(due, calls_->WhileItLives([this] {
        absl::MutexLock lock(&calls_->mu);
        timer_nanos_ = InferenceQueue::kNever;  // looks again
      }));
    });
    if (timed.ok()) continue;
    timer_nanos_ = InferenceQueue::kNever;
    calls_->inference.Reached(due);  // without memory to wait for others, it does not
  }
}

void InferenceLoop::Loop() {
  while (true) {
    BatchPointer batch;
    {
      absl::MutexLock lock(&calls_->mu);
      if (!AwaitWork()) return;
      const absl::Status taken = Guarded("the start of an inference", [&] {
        calls_->mu.AssertHeld();
        batch = calls_->inference.Start();
      });
      if (!taken.ok()) continue;  // it waits as before
      calls_->UpdateQueueMetrics();
    }
    StartRun(batch);
  }
}

void InferenceLoop::StartRun(const BatchPointer& batch) {
  const int64_t now = clock_->NowNanos();
  for (const CallPointer& call : batch->calls) call->started_nanos = now;
  if (batch->calls.front()->mode == BatchMode::kInfer) calls_->times.RunBegan(clock_->WallNow());
  batch->left = batch->calls.size();
  if (!batch->merges) return StartAlone(batch, batch->calls.front());
  CountRun(*batch->calls.front());
  const absl::Status started = Guarded("a batch of inference", [&] {
    for (const CallPointer& call : batch->calls) settlement_->CountStart(*call);
    // This outlives the run: Stop() waits until nothing is in flight.
    runner_->StartBatch(
        batch->calls, micro_batch_rows_,
        [this, batch](absl::StatusOr<std::vector<RunOutcome>> outcomes) { OnBatchEnd(batch, std::move(outcomes)); });
  });
  if (!started.ok()) OnBatchEnd(batch, started);
}

void InferenceLoop::CountRun(const Call& call) {
  if (call.mode != BatchMode::kInfer) return;  // it evaluates
  if (const auto metrics = calls_->metrics(); metrics != nullptr) metrics->inference_runs.Add();
}

void InferenceLoop::StartAlone(const BatchPointer& batch, const CallPointer& call) {
  CountRun(*call);
  const absl::Status started = Guarded("an inference", [&] {
    if (!batch->merges) settlement_->CountStart(*call);  // else it is counted
    runner_->StartInference(
        *call, [this, batch, call](absl::StatusOr<RunOutcome> outcome) { OnRunEnd(batch, call, std::move(outcome)); });
  });
  if (!started.ok()) OnRunEnd(batch, call, started);
}

void InferenceLoop::OnBatchEnd(const BatchPointer& batch, absl::StatusOr<std::vector<RunOutcome>> outcomes) {
  const bool inseparable = AreInseparable(outcomes.status());
  bool again = false;  // call by call; without memory to tell, it has failed, and that is all
  Guarded("a batch of inference", [&] {
    again = !outcomes.ok() && batch->calls.size() > 1 && !IsRankLost(outcomes.status());
  }).IgnoreError();
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->inference.LeaveStages(*batch, clock_->NowNanos());  // the next one need not wait until these are told
    if (inseparable) calls_->inference.StopMerging();
  }
  if (inseparable) {
    Guarded("a batch of inference", [&] {
      LogWarning("inference is not batched any more", {{"problem", std::string(outcomes.status().message())}});
    }).IgnoreError();
  }
  if (outcomes.ok()) {
    for (const RunOutcome& outcome : *outcomes) batch->rows += outcome.rows;
  }
  if (!again) batch->end_nanos = clock_->NowNanos();
  for (size_t k = 0; k < batch->calls.size(); ++k) {
    const CallPointer& call = batch->calls[k];
    if (call->cancel->cancelled()) {
      OnRunEnd(batch, call, cancelled_);
    } else if (again) {
      StartAlone(batch, call);
    } else if (outcomes.ok()) {
      OnRunEnd(batch, call, std::move((*outcomes)[k]));
    } else {
      OnRunEnd(batch, call, outcomes.status());
    }
  }
}

void InferenceLoop::OnRunEnd(const BatchPointer& batch, const CallPointer& call, absl::StatusOr<RunOutcome> outcome) {
  if (IsRankLost(outcome.status())) calls_->Lose(outcome.status()).IgnoreError();  // before the caller asks again
  const bool counts = outcome.ok() && call->mode == BatchMode::kInfer;
  const int64_t rows = outcome.ok() ? outcome->rows : 0;
  const int64_t end = batch->end_nanos > 0 ? batch->end_nanos : clock_->NowNanos();
  const absl::Status settled = Guarded("an inference", [&] { Settle(call, std::move(outcome)); });
  Guarded("the times of an inference", [&] { CountTimes(*batch, *call, counts, rows, end); }).IgnoreError();
  if (!settled.ok()) Guarded("an inference", [&] { settlement_->FailRun(call, settled); }).IgnoreError();
  if (--batch->left == 0) End(batch);
}

// `end`: of the stages. A run of several calls ends with the last of them, and counts where one of them does.
void InferenceLoop::CountTimes(InferenceBatch& batch, const Call& call, bool counts, int64_t rows, int64_t end) {
  const int64_t infer = end - call.started_nanos;
  const int64_t output = clock_->NowNanos() - end;
  if (counts) calls_->times.CallEnded(infer, output);
  if (batch.rows == 0) {  // the call is the run: others of its batch may end on other threads
    if (counts) calls_->times.RunEnded(rows, infer, output);
    return;
  }
  batch.counts = batch.counts || counts;
  if (batch.left == 1 && batch.counts) calls_->times.RunEnded(batch.rows, infer, output);
}

// Last: from here on, Stop() may return on its thread.
void InferenceLoop::End(const BatchPointer& batch) {
  std::vector<std::function<void()>> callbacks;
  const int64_t now = clock_->NowNanos();
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->inference.EndRun(batch, now);
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
