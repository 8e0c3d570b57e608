#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

class FileSystem;
class WritableFile;

// Writes a file that is whole or not there, also after a loss of power: under the name `unfinished`, in the same folder,
// until it is on the disk. A crash may leave that one behind.
//
// Fails:     as WritableFile, and as `write`; then `unfinished` is gone.
absl::Status WriteDurable(FileSystem* files, const std::string& unfinished, const std::string& path,
                          std::string_view content);
absl::Status WriteDurable(FileSystem* files, const std::string& unfinished, const std::string& path,
                          const std::function<absl::Status(WritableFile&)>& write);

}  // namespace penstock
