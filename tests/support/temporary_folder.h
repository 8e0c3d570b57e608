#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "engine/base/check.h"

namespace penstock::testing {

// A folder that is gone with its fixture.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "penstock-XXXXXX").string();
    PENSTOCK_CHECK(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace penstock::testing
