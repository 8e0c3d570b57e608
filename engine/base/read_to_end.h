#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace penstock {

// All bytes of what an operator names: a file, a pipe or a device, read to its end.
//
// Fails:     UNKNOWN with the operation and the system's words, for a folder too; the message does not name the path.
absl::StatusOr<std::string> ReadToEnd(const std::string& path);

}  // namespace penstock
