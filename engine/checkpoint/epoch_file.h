#pragma once

// A durable counter of starts, which distinguishes a handle from before a restart from a released one.

#include <string>

#include "absl/status/statusor.h"
#include "engine/base/file.h"
#include "engine/base/ids.h"

namespace penstock {

// Raises the counter in `state_dir`/epoch and returns the new value, at least 1. One counter serves
// all pipelines of a daemon: each of them gets a new epoch at each start, which is all that it must.
//
// Fails:     STORAGE_FULL; DATA_LOSS / CHECKPOINT_CORRUPT when the file holds no number, since
//            starting again at 1 would make old handles look like new ones.
absl::StatusOr<Epoch> RaiseEpoch(FileSystem* files, const std::string& state_dir);

}  // namespace penstock
