#pragma once

// Checkpoints as messages, and the specifications that they keep, which the engine does not look into.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/serve/pipeline_table.h"
#include "penstock/v1/pipeline.pb.h"
#include "penstock/v1/state.pb.h"

namespace penstock {

// Makes messages of checkpoints. Those that come one after another and share a specification have it read once.
//
// Threads:   one at a time.
class CheckpointMessages {
 public:
  v1::Checkpoint Make(const CheckpointInfo& info, bool pipeline_exists);

 private:
  std::shared_ptr<const std::string> read_;
  v1::Checkpoint facts_;  // that its specification tells
};

// The bytes that checkpoints keep of a pipeline: the specification as it was asked for, with the digest of its program
// and the optimizer's settings as they are now, and the cut and schedule that were planned.
std::string SpecificationBytes(const v1::PipelineSpec& asked, const Plan& plan, const ModelSpec& model,
                               const OptimizerSpec& optimizer);

// Of a pipeline that is made from a checkpoint.
struct CheckpointSpecifications {
  v1::PipelineSpec planned;  // with the cut and schedule that were planned, where nothing is given that bears on them
  v1::PipelineSpec asked;    // as it was asked for
};

// The specification of a pipeline that is made from a checkpoint: the checkpoint's, with `given` over it, as
// CreatePipelineRequest.from_checkpoint says.
//
// Fails:     FAILED_PRECONDITION / CHECKPOINT_SPEC_MISSING; DATA_LOSS / CHECKPOINT_CORRUPT for a damaged one, or bytes
//            that are no specification. Whether the specification is good is FromProto's to say.
absl::StatusOr<CheckpointSpecifications> SpecificationFrom(const CheckpointInfo& info, const v1::PipelineSpec& given);

// Whether a pipeline is as one of some specifications asks for, defaults filled in. The digest of a program counts if
// it is given.
//
// Fails:     ALREADY_EXISTS / PIPELINE_EXISTS, naming the first fields in which the first one differs.
absl::Status CheckSameSpecification(const PipelineEntry& entry, const std::vector<PipelineSpec>& asked);

}  // namespace penstock
