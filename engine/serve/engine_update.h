#pragma once

// How another engine takes the place of the one that stands.

#include <memory>

#include "absl/status/statusor.h"
#include "engine/serve/call.h"
#include "engine/serve/call_runner.h"
#include "engine/serve/current_pipeline.h"
#include "engine/serve/made_engine.h"
#include "engine/serve/served_calls.h"

namespace penstock {

class AutomaticCheckpoints;
class InferenceLoop;

// Runs an UpdateCall when its turn has come.
//
//   copy the state ─▶ make it durable, with the new specification ─▶ let inference run out ─▶ swap ─▶ let it run on
//   (inference goes on)                                             (new requests wait)
//
// Model:     the training order stands still meanwhile, so weights, gradients and tokens stay as they are. With a journal the
//            checkpoint is where the update is decided: a crash before it finds the old engine, one behind it the new one.
// Owns:      what goes with the engine that stands (MadeEngine::held).
// Threads:   Run() from the training thread. All that it is made of outlives it.
// Fails:     With nothing changed: HOST_MEMORY for the copy; MODEL_MISMATCH where the engines are not of one model; as
//            AutomaticCheckpoints::SaveNow().
class EngineUpdate {
 public:
  // `automatic`: null without a journal. `held`: of the engine that stands.
  EngineUpdate(ServedCalls* calls, CallRunner* runner, CurrentPipeline* pipeline, AutomaticCheckpoints* automatic,
               InferenceLoop* inference, std::shared_ptr<const void> held)
      : calls_(calls),
        runner_(runner),
        pipeline_(pipeline),
        automatic_(automatic),
        inference_(inference),
        held_(std::move(held)) {}

  absl::StatusOr<Executed> Run(const UpdateCall& update, Call& call) ABSL_LOCKS_EXCLUDED(calls_->mu);

 private:
  absl::Status MakeDurable(const MadeEngine& next, const CancelToken* cancel);
  void Swap(MadeEngine& engine, CurrentPipeline::Prepared next) ABSL_LOCKS_EXCLUDED(calls_->mu);

  ServedCalls* const calls_;
  CallRunner* const runner_;
  CurrentPipeline* const pipeline_;
  AutomaticCheckpoints* const automatic_;
  InferenceLoop* const inference_;
  std::shared_ptr<const void> held_;
};

// How an engine's inference is batched.
BatchLimits BatchLimitsOf(const std::optional<DynamicBatchingSpec>& spec, const Plan& plan);
int64_t MicroBatchRowsOf(const std::optional<DynamicBatchingSpec>& spec, const Plan& plan);

}  // namespace penstock
