// The corpus of exported_program_fuzz.cc, run as a test: what once was found must stay found.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

TEST(ExportedProgramCorpus, IsSurvived) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PENSTOCK_CORPUS_FOLDER)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream content;
    content << file.rdbuf();
    const std::string bytes = content.str();
    for (size_t size = bytes.size(); size > 0; size -= 1 + size / 16) {  // the whole file, and cut off
      EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), size), 0);
    }
    ++files;
  }
  EXPECT_GE(files, 5);
}

}  // namespace
