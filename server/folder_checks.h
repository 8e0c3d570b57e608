#pragma once

// The folders and files that settings name.

#include "absl/status/status.h"
#include "server/daemon_options.h"

namespace penstock {

// Whether --state-dir, --model-root and --otlp-file can be what they must be; makes and changes nothing. A missing
// state folder is made at the start, so one that is missing is good if it can stand in a folder.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming the flag and the path.
absl::Status CheckFolders(const DaemonOptions& options);

}  // namespace penstock
