#include "server/audit/audit_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "engine/base/error.h"

namespace penstock {
namespace {

class AuditFileTest : public ::testing::Test {
 protected:
  AuditFileTest() : folder_(std::filesystem::path(::testing::TempDir()) / UniqueName()) {
    std::filesystem::create_directories(folder_);
  }
  ~AuditFileTest() override { std::filesystem::remove_all(folder_); }

  static std::string UniqueName() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return std::string("audit_") + test->name() + "_" + std::to_string(::getpid());
  }
  std::string Path(const std::string& suffix = "") const { return (folder_ / ("log" + suffix)).string(); }
  std::string Read(const std::string& suffix = "") const {
    std::ifstream file(Path(suffix));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::unique_ptr<AuditFile> Open(int64_t max_bytes = 1 << 20, int old_files = 2) const {
    auto file = AuditFile::Open({.path = Path(), .max_bytes = max_bytes, .old_files = old_files});
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  mode_t Mode(const std::string& suffix = "") const {
    struct stat info {};
    EXPECT_EQ(::stat(Path(suffix).c_str(), &info), 0);
    return info.st_mode & 0777;
  }

  const std::filesystem::path folder_;
};

TEST_F(AuditFileTest, LinesAreAddedToWhatIsThere) {
  ASSERT_TRUE(Open()->Append("one\n").ok());
  ASSERT_TRUE(Open()->Append("two\n").ok());
  EXPECT_EQ(Read(), "one\ntwo\n");
}

TEST_F(AuditFileTest, OnlyItsOwnerReadsIt) {
  const mode_t before = ::umask(0);
  std::ofstream(Path()) << "old\n";
  ::chmod(Path().c_str(), 0644);
  const auto file = Open(/*max_bytes=*/6);
  EXPECT_EQ(Mode(), 0600);
  ASSERT_TRUE(file->Append("one\n").ok());
  EXPECT_EQ(Mode(), 0600);
  EXPECT_EQ(Mode(".1"), 0600);
  ::umask(before);
}

TEST_F(AuditFileTest, FilesRotateAtWholeLinesAndTheOldestGoes) {
  const auto file = Open(/*max_bytes=*/8, /*old_files=*/2);
  for (const char* line : {"one\n", "two\n", "three\n", "four\n", "five\n"}) ASSERT_TRUE(file->Append(line).ok());
  EXPECT_EQ(Read(), "five\n");
  EXPECT_EQ(Read(".1"), "four\n");
  EXPECT_EQ(Read(".2"), "three\n");
  EXPECT_FALSE(std::filesystem::exists(Path(".3")));
}

TEST_F(AuditFileTest, ANewFileHasRoomForAsMuchAsTheOneBefore) {
  const auto file = Open(/*max_bytes=*/8, /*old_files=*/2);
  for (const char* line : {"one\n", "two\n", "six\n", "ten\n"}) ASSERT_TRUE(file->Append(line).ok());
  EXPECT_EQ(Read(), "six\nten\n");
  EXPECT_EQ(Read(".1"), "one\ntwo\n");
}

TEST_F(AuditFileTest, ALineThatIsLargerThanAFileIsKeptWhole) {
  const auto file = Open(/*max_bytes=*/4);
  ASSERT_TRUE(file->Append("much longer\n").ok());
  EXPECT_EQ(Read(), "much longer\n");
}

TEST_F(AuditFileTest, WithoutOldFilesTheFileBeginsAnew) {
  const auto file = Open(/*max_bytes=*/8, /*old_files=*/0);
  for (const char* line : {"one\n", "two\n", "three\n"}) ASSERT_TRUE(file->Append(line).ok());
  EXPECT_EQ(Read(), "three\n");
  EXPECT_FALSE(std::filesystem::exists(Path(".1")));
}

TEST_F(AuditFileTest, ARotationThatFailsLosesNoLine) {
  std::filesystem::create_directories(folder_ / "log.1" / "in the way");
  const auto file = Open(/*max_bytes=*/8, /*old_files=*/1);
  for (const char* line : {"one\n", "two\n", "three\n"}) ASSERT_TRUE(file->Append(line).ok());
  EXPECT_EQ(Read(), "one\ntwo\nthree\n");
}

TEST_F(AuditFileTest, ALineThatWasCutOffEndsBeforeTheNextOne) {
  std::ofstream(Path()) << "whole\nto";
  ASSERT_TRUE(Open()->Append("next\n").ok());
  EXPECT_EQ(Read(), "whole\nto\nnext\n");
}

// A limit of the process stands for a disk that is full: the kernel writes what fits, then nothing.
TEST_F(AuditFileTest, OfALineThatDoesNotFitNothingStays) {
  const auto file = Open();
  ASSERT_TRUE(file->Append("0123456\n").ok());
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit tight{10, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status full = file->Append("more\n");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(ReasonOf(full), "STORAGE_FULL");
  EXPECT_EQ(Read(), "0123456\n");
  ASSERT_TRUE(file->Append("again\n").ok());
  EXPECT_EQ(Read(), "0123456\nagain\n");
}

TEST_F(AuditFileTest, WhatCanNotBeOpenedIsRefusedByName) {
  const auto file = AuditFile::Open({.path = folder_.string(), .max_bytes = 1, .old_files = 0});
  EXPECT_EQ(ValuesOf(file.status())["field"], "--audit-log");
  EXPECT_EQ(ValuesOf(file.status())["value"], folder_.string());
}

}  // namespace
}  // namespace penstock
