#pragma once

#include "engine/exec/pipeline_draft.h"
#include "engine/plan/planner.h"

namespace penstock {

// Measures the stages of a plan, and runs its steps, where they would stand; for a search to try the best of what it
// lists. The arguments must outlive what is returned.
//
// Empty where devices are no threads: a serial pool must give the same result on every machine. Steps are not run where
// the model's inputs or the target of its loss are not known.
PlanTrials TrialsOnDevices(const PipelineSpec& spec, const Pipeline::Options& options, const Draft& draft);

}  // namespace penstock
