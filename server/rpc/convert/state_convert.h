#pragma once

// The requests of StateService as the engine's calls, once they have been checked.

#include "absl/status/statusor.h"
#include "engine/serve/calls.h"
#include "penstock/v1/state.pb.h"

namespace penstock {

class CheckpointStore;

SaveCall CallOf(const v1::SaveCheckpointRequest& request);
// Fails: NAME_INVALID.
absl::StatusOr<RestoreCall> CallOf(const v1::RestoreCheckpointRequest& request);
absl::StatusOr<DeleteCall> CallOf(const v1::DeleteCheckpointRequest& request);
// Fails: CHECKPOINT_NOT_FOUND for a source of a pipeline that has none, too.
absl::StatusOr<CopyCall> CallOf(const v1::CopyCheckpointRequest& request, const CheckpointStore& checkpoints);
// Without the handles.
WriteCall SettingsOf(const v1::WriteParametersRequest& request);

}  // namespace penstock
