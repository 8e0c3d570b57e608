#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace penstock {

// What files of settings may have.
inline constexpr int64_t kMaxSettingBytes = int64_t{1} << 20;

// All bytes of what an operator names: a file, a pipe or a device, read to its end.
//
// Fails:     UNKNOWN with the operation and the system's words, for a folder too, or for more bytes than `most`; the
//            message does not name the path.
absl::StatusOr<std::string> ReadToEnd(const std::string& path, int64_t most);

}  // namespace penstock
