#pragma once

// What one pipeline knows of its gaps.

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/exec/pipeline_spec.h"
#include "engine/filling/action_costs.h"
#include "engine/filling/inference_turns.h"
#include "engine/filling/run_forecast.h"
#include "engine/filling/step_rhythm.h"

namespace penstock {

// Brings together what the choice of an inference action beside training needs: when training wants a lane again, how
// long inference takes there, which calls have waited long enough, and the pipeline's switch.
//
// Model:     a training run is followed from BeginRun to EndRun; between runs the rhythm of steps speaks. Costs are
//            learned at the end of each run.
// Threads:   BeginRun and EndRun from the caller of training runs; the rest from any thread.
// Units:     nanoseconds; rows of one micro-batch.
class BubbleFilling {
 public:
  // What is forecast. Without `gaps` every gap holds any action; without `pauses` the time between runs is free.
  struct Foresight {
    bool gaps = true;
    bool pauses = true;
  };
  BubbleFilling(const BubbleFillingSpec& spec, const Plan& plan, Foresight foresight);

  bool fills() const { return spec_.enabled; }

  // Null where nothing is forecast.
  std::shared_ptr<RunProgress> BeginRun(std::shared_ptr<const Schedule> schedule, int64_t rows, bool barrier,
                                        int64_t now);
  void EndRun(const RunProgress* progress, int64_t rows, int64_t now);

  // Between training runs: when the next is expected, kNever for none; and when that may have changed without an event.
  int64_t NextRun(int64_t now) const { return foresight_.pauses ? rhythm_.ExpectedStart(now) : kNever; }
  int64_t NextRunGivenUpAt() const { return foresight_.pauses ? rhythm_.GivenUpAt() : kNever; }
  // When the open run will change the weights; kNever if there is none or it won't.
  int64_t WeightsChange(int64_t now) const ABSL_LOCKS_EXCLUDED(mu_);

  InferenceCosts& inference_costs() { return inference_costs_; }
  InferenceTurns& turns() { return turns_; }

 private:
  const BubbleFillingSpec spec_;
  const Foresight foresight_;

  // Safe by themselves.
  TrainingCosts training_costs_;
  InferenceCosts inference_costs_;
  InferenceTurns turns_;
  StepRhythm rhythm_;

  mutable absl::Mutex mu_;
  std::shared_ptr<RunProgress> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
