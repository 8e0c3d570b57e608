#pragma once

// Whether, and how, the state of a checkpoint fits a pipeline.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

class Pipeline;

// Whether a tensor of a state is the optimizer's: optimizer/PARAMETER/SLOT.
bool IsOptimizerSlot(const std::string& name);

// Whether a checkpoint was saved from the exported program of `spec_digest`, whose digest stands behind a blank; or
// both from none. Of a damaged one nothing is known: reading it tells.
//
// Fails:     FAILED_PRECONDITION / MODEL_MISMATCH, naming the checkpoint and both digests.
absl::Status CheckProgram(const CheckpointInfo& info, const std::string& spec_digest);

// Whether a state has exactly the names, shapes and types of a pipeline's.
//
// Fails:     FAILED_PRECONDITION / MODEL_MISMATCH, naming the first tensor that is missing, unknown or differs.
absl::Status CheckState(const NamedTensors& state, const NamedTensors& shapes);

// The state for a new pipeline that may have another optimizer: all weights and buffers of the checkpoint. Of a
// parameter's optimizer state, what the checkpoint has, if it has each of the pipeline's slots in its shape and type;
// else all of it is as in a new pipeline. Slots that the pipeline does not have are dropped.
//
// Fails:     as Pipeline::ExportState.
absl::StatusOr<NamedTensors> FitState(NamedTensors saved, const Pipeline& pipeline);

}  // namespace penstock
