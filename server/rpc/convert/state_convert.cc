#include "server/rpc/convert/state_convert.h"

#include <memory>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "server/rpc/convert/field_values.h"

namespace penstock {

SaveCall CallOf(const v1::SaveCheckpointRequest& request) {
  return {.id = request.checkpoint_id(), .replace = request.replace(), .keep = request.keep()};
}

absl::StatusOr<RestoreCall> CallOf(const v1::RestoreCheckpointRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(CheckpointName name, ParseCheckpointName(request.name(), "name"));
  return RestoreCall{.id = std::move(name.checkpoint), .force = request.force()};
}

absl::StatusOr<DeleteCall> CallOf(const v1::DeleteCheckpointRequest& request) {
  PENSTOCK_ASSIGN_OR_RETURN(CheckpointName name, ParseCheckpointName(request.name(), "name"));
  return DeleteCall{.id = std::move(name.checkpoint)};
}

absl::StatusOr<CopyCall> CallOf(const v1::CopyCheckpointRequest& request, const CheckpointStore& checkpoints) {
  PENSTOCK_ASSIGN_OR_RETURN(const CheckpointName source, ParseCheckpointName(request.source(), "source"));
  std::shared_ptr<CheckpointFolder> folder = checkpoints.FindFolder(source.pipeline);
  if (folder == nullptr) return WithValue(CheckpointNotFound(source.checkpoint), "pipeline", source.pipeline);
  return CopyCall{.source = std::move(folder), .source_id = source.checkpoint, .id = request.checkpoint_id()};
}

WriteCall SettingsOf(const v1::WriteParametersRequest& request) {
  WriteCall write{.handles = {}, .step = {}, .force = request.force()};
  if (request.has_step()) write.step = request.step();
  return write;
}

}  // namespace penstock
