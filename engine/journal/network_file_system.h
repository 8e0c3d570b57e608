#pragma once

// Whether a folder stands on a network file system, whose locks and syncs a journal can't rely on.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

// The name of a network file system by the number that statfs gives ("NFS"); "" for all others, and for FUSE, which
// does not say what it stands for.
std::string_view NetworkFileSystemName(int64_t type);

// Refuses a folder on such a file system by its name.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID with `field` state_dir; NOT_FOUND for a missing folder.
absl::Status RefuseNetworkFileSystem(const std::string& folder);

// Bytes of the folder's disk that this process may still write; INT64_MAX where it does not say.
int64_t FreeDiskBytes(const std::string& folder);

}  // namespace penstock
