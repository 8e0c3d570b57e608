#pragma once

// What of a model's inputs and outputs belongs to which stage of a run.
//
// The first stage has all inputs and the last one all outputs, but for what goes straight (SkipRoute): an input that an
// earlier stage would only hand on comes to the stage that uses it, an output leaves the stage that made it. The first
// stage has the shapes of such inputs, and the last one None. The other stages have what is theirs as a tuple, in the order
// of their route. Gradients of inputs are where the inputs are.

#include <vector>

#include "engine/plan/plan.h"
#include "engine/tensor/batch.h"

namespace penstock {

// Of the inputs of each micro-batch: [stage][micro-batch]; empty for a stage that has none. May throw.
std::vector<std::vector<Batch>> InputsByStage(const Plan& plan, std::vector<Batch> micro_batches);

// And back, by micro-batch: what stages have made, [stage][micro-batch]. What a stage has None of was not made there, but
// by the last stage, or the first one.
std::vector<Batch> JoinOutputs(const Plan& plan, const std::vector<std::vector<Batch>>& outputs);
std::vector<Batch> JoinInputGradients(const Plan& plan, const std::vector<std::vector<Batch>>& gradients);

}  // namespace penstock
