#pragma once

// A model root for tests, on a disk with faults.

#include <filesystem>
#include <string>
#include <vector>

#include "server/models/model_root.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/program/program_archives.h"

namespace penstock::testing {

inline constexpr int64_t kMaxModelBytes = int64_t{1} << 20;

class ModelFolder {
 public:
  const std::string& path() const { return folder_.path(); }
  FaultyFileSystem& files() { return files_; }

  void Put(const std::string& name, const std::string& bytes) {
    std::ofstream(path() + "/" + name, std::ios::binary) << bytes;
  }

  // Names of everything that is there.
  std::vector<std::string> Names() const { return *RealFileSystem()->List(path()); }

  ModelRoot::Options Options() {
    return {.files = &files_,
            .root = path(),
            .max_model_bytes = kMaxModelBytes,
            .max_root_bytes = 4 * kMaxModelBytes,
            .users = {},
            .memory = nullptr};
  }

 private:
  TemporaryFolder folder_;
  FaultyFileSystem files_{RealFileSystem()};
};

}  // namespace penstock::testing
