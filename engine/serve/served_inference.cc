// The thread that hands inference of a ServedPipeline to the stages, some at a time, beside training.

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/caller_share.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/serve/served_pipeline.h"
#include "engine/tensor/microbatch.h"

namespace penstock {

void ServedPipeline::InferLoop() {
  const auto can_start = [this] {
    mu_.AssertReaderHeld();
    const bool room = static_cast<int>(infer_running_.size()) < options_.infer_in_flight;
    return stopping_ || (room && !infer_ready_.empty());
  };
  while (true) {
    WorkPointer work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&can_start));
      if (stopping_) return;  // Stop() has emptied the queue
      work = NextInference();
      RemoveQueued(work);
      work->phase = Work::Phase::kRunning;
      infer_running_.insert(work);
    }
    if (absl::Status started = Guarded("an inference", [&] { StartInference(work); }); !started.ok()) {
      OnInferred(work, started);
    }
  }
}

// The first that is ready, but for one thing: of the runs, a caller's with a priority above 0 take at most a quarter while
// another call can start, so that whoever takes the highest priority does not keep all others waiting.
ServedPipeline::WorkPointer ServedPipeline::NextInference() const {
  std::map<std::string, int64_t> urgent;  // runs with a priority, by caller
  for (const WorkPointer& running : infer_running_) {
    if (running->priority > 0) ++urgent[running->context.caller];
  }
  const int64_t most = CallerShare(options_.infer_in_flight, /*others=*/true);
  const auto may_start = [&](const WorkPointer& work) {
    return work->priority <= 0 || urgent[work->context.caller] < most;
  };
  const auto found = std::find_if(infer_ready_.begin(), infer_ready_.end(), may_start);
  return found == infer_ready_.end() ? infer_ready_.front() : *found;
}

void ServedPipeline::StartInference(const WorkPointer& work) {
  work->started_nanos = options_.clock->NowNanos();
  if (options_.metrics != nullptr) {
    options_.metrics->queues[WorkQueue::kInfer].wait.Observe(work->started_nanos - work->accepted_nanos);
    options_.metrics->BatchStarted(BatchMode::kInfer);
  }
  absl::Status status = CheckTensors(*work);
  absl::StatusOr<NamedValues> inputs = status.ok() ? work->inputs.Take() : absl::StatusOr<NamedValues>(status);
  if (!inputs.ok()) {
    OnInferred(work, inputs.status());
    return;
  }
  // This outlives the run: Stop() waits until nothing is in flight.
  pipeline_->InferAsync({.inputs = *std::move(inputs),
                         .micro_batches = work->micro_batches,
                         .outputs = work->outputs,
                         .cancel = work->cancel,
                         .priority = work->priority},
                        [this, work](absl::StatusOr<ForwardOutcome> outcome) { OnInferred(work, std::move(outcome)); });
}

// A handle holds tensors: an output that is none fails it by name.
void ServedPipeline::FulfilValues(const HandleId& id, const NamedValues& values) {
  absl::StatusOr<NamedTensors> tensors = ToTensors(values);
  if (tensors.ok()) {
    options_.handles->Fulfil(id, *std::move(tensors));
  } else {
    options_.handles->Fail(id, tensors.status());
  }
}

void ServedPipeline::OnInferred(const WorkPointer& work, absl::StatusOr<ForwardOutcome> outcome) {
  const absl::Status settled = Guarded("an inference", [&] { SettleInferred(work, outcome); });
  if (!settled.ok()) Guarded("an inference", [&] { FailRun(work, settled); }).IgnoreError();
  // Last: from here on, Stop() may return on its thread.
  std::vector<std::function<void()>> callbacks;
  {
    absl::MutexLock lock(&mu_);
    infer_running_.erase(work);
    if (state_ != State::kReady && Idle()) callbacks.swap(drained_);
  }
  for (const auto& callback : callbacks) Guarded("the end of a drain", callback).IgnoreError();
}

void ServedPipeline::SettleInferred(const WorkPointer& work, const absl::StatusOr<ForwardOutcome>& outcome) {
  {
    absl::MutexLock lock(&mu_);
    work->phase = Work::Phase::kDone;
  }
  RunOutcome run;
  run.rows = work->rows;
  CountRun(*work, outcome.status(), outcome.ok() ? &run : nullptr);
  TellEnded(*work, outcome.ok() ? outcome->step : 0, outcome.status());
  if (outcome.ok()) {
    EndPlace(*work);
    FulfilValues(work->accepted.outputs->id, outcome->outputs);
  } else {
    SettleFailed(work, outcome.status());
  }
  LetGo(*work);
}

}  // namespace penstock
