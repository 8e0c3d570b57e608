#pragma once

#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace penstock::testing {

// Files of a test, which it writes anew at will.
class TestFiles {
 public:
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name), std::ios::binary | std::ios::trunc) << content;
    return Path(name);
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

 private:
  TemporaryFolder folder_;
};

}  // namespace penstock::testing
