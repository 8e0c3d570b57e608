#pragma once

#include "absl/status/status.h"
#include "engine/base/job_thread.h"
#include "server/models/model_root.h"
#include "server/models/model_uploads.h"

namespace penstock {

// What calls about models work on. All of it outlives them.
struct ModelParts {
  ModelRoot* root = nullptr;
  JobThread* jobs = nullptr;        // files are written there only
  JobThread* reads = nullptr;       // what models hold is read there, however long it takes
  ModelUploads* uploads = nullptr;  // null: models can't be changed over the wire
};

// FEATURE_DISABLED, saying which flag the call needs; OK if the daemon has it.
absl::Status CheckModelsEnabled(const ModelParts& parts, bool changes);

}  // namespace penstock
