#include "engine/serve/engine_update.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "engine/base/freed_memory.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/plan/planner.h"
#include "engine/serve/automatic_checkpoints.h"
#include "engine/serve/inference_loop.h"

namespace penstock {

// One batch for each lane keeps all of them busy; more would be closed before others can join.
BatchLimits BatchLimitsOf(const std::optional<DynamicBatchingSpec>& spec, const Plan& plan) {
  if (!spec.has_value()) return {};
  BatchLimits limits{.places = LaneCount(plan), .max_rows = spec->max_rows};
  if (const std::optional<double> delay = spec->max_delay_seconds; delay.has_value()) {
    limits.max_delay_nanos = static_cast<int64_t>(*delay * 1e9);
  }
  return limits;
}

int64_t MicroBatchRowsOf(const std::optional<DynamicBatchingSpec>& spec, const Plan& plan) {
  if (!spec.has_value()) return 1;
  if (spec->micro_batch_rows > 0) return spec->micro_batch_rows;
  const int64_t lanes = LaneCount(plan);
  return (spec->max_rows + lanes - 1) / lanes;
}

absl::StatusOr<Executed> EngineUpdate::Run(const UpdateCall& update, Call& call) {
  PENSTOCK_ASSIGN_OR_RETURN(Executed executed, runner_->Run(call));
  // What may fail comes before it is durable.
  CurrentPipeline::Prepared next = CurrentPipeline::Prepare(std::move(update.engine->pipeline));
  PENSTOCK_RETURN_IF_ERROR(MakeDurable(*update.engine, call.cancel.get()));
  Swap(*update.engine, std::move(next));
  if (update.done) Guarded("the end of an update", update.done).IgnoreError();
  return executed;
}

// The engine that stands has the state of the other one, so that it can be saved as that one's.
absl::Status EngineUpdate::MakeDurable(const MadeEngine& next, const CancelToken* cancel) {
  CallRunner::Describe before = runner_->SetDescribe(next.describe);
  absl::Cleanup undo = [&] { runner_->SetDescribe(std::move(before)); };
  if (automatic_ != nullptr) PENSTOCK_RETURN_IF_ERROR(automatic_->SaveNow(cancel));
  std::move(undo).Cancel();
  return absl::OkStatus();
}

void EngineUpdate::Swap(MadeEngine& engine, CurrentPipeline::Prepared next) {
  const auto run_out = [this] {
    calls_->mu.AssertReaderHeld();
    return calls_->inference.running() == 0;
  };
  CurrentPipeline::Prepared old;
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->inference.SetPaused(true);
    calls_->mu.Await(absl::Condition(&run_out));
    old = pipeline_->Replace(std::move(next));
    calls_->SetMetrics(engine.metrics);
    calls_->times.Reset();
    const Plan& plan = pipeline_->plan();
    calls_->inference.SetBatching(BatchLimitsOf(engine.batching, plan));
    inference_->SetMicroBatchRows(MicroBatchRowsOf(engine.batching, plan));
    held_.swap(engine.held);
    calls_->UpdateQueueMetrics();
    calls_->inference.SetPaused(false);
  }
  // Somebody may still look at it. What it held comes free behind it.
  old.pipeline = nullptr;
  old.gone->WaitForNotification();
  engine.held = nullptr;
  ReturnFreedMemory();
}

}  // namespace penstock
