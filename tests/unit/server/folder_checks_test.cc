#include "server/folder_checks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/error.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

class FolderChecksTest : public ::testing::Test {
 protected:
  FolderChecksTest() {
    options_.state_dir = folder_.path() + "/state";
    file_ = folder_.path() + "/file";
    std::ofstream(file_) << "text";
  }
  void ExpectRefused(const std::string& field, const std::string& value) {
    const absl::Status status = CheckFolders(options_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ValuesOf(status)["field"], field);
    EXPECT_EQ(ValuesOf(status)["value"], value);
  }

  testing::TemporaryFolder folder_;
  std::string file_;
  DaemonOptions options_;
};

TEST_F(FolderChecksTest, AStateFolderMayBeMissingAndStaysSo) {
  EXPECT_TRUE(CheckFolders(options_).ok());
  options_.state_dir += "/deep/down";
  EXPECT_TRUE(CheckFolders(options_).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/state"));
}

TEST_F(FolderChecksTest, AStateFolderIsNoFileAndStandsInNone) {
  options_.state_dir = file_;
  ExpectRefused("--state-dir", file_);
  options_.state_dir = file_ + "/state";
  ExpectRefused("--state-dir", file_ + "/state");
}

TEST_F(FolderChecksTest, AModelRootIsAFolderUnlessUploadsMakeIt) {
  options_.model_root = folder_.path();
  EXPECT_TRUE(CheckFolders(options_).ok());
  options_.model_root = file_;
  ExpectRefused("--model-root", file_);
  options_.model_root = folder_.path() + "/models";
  ExpectRefused("--model-root", folder_.path() + "/models");
  options_.allow_model_upload = true;
  EXPECT_TRUE(CheckFolders(options_).ok());
}

// Root may write everywhere, so an ordinary user is asked, in a process of its own.
TEST_F(FolderChecksTest, AModelRootThatUploadsWriteToIsWritable) {
  using std::filesystem::perms;
  options_.model_root = folder_.path() + "/models";
  std::filesystem::create_directory(options_.model_root);
  std::filesystem::create_directory(options_.state_dir);
  constexpr perms kRead = perms::owner_read | perms::group_read | perms::others_read;
  constexpr perms kEnter = perms::owner_exec | perms::group_exec | perms::others_exec;
  std::filesystem::permissions(folder_.path(), kRead | kEnter | perms::owner_write);
  std::filesystem::permissions(options_.model_root, kRead | kEnter);
  std::filesystem::permissions(options_.state_dir, perms::all);
  const auto check_as_a_user = [this] {
    constexpr uid_t kNobody = 65534;
    // By relative paths, for this user may not be let into the folders above.
    if (chdir(folder_.path().c_str()) != 0) std::_Exit(3);
    options_.model_root = "models";
    options_.state_dir = "state";
    if (geteuid() == 0 && setresuid(kNobody, kNobody, kNobody) != 0) std::_Exit(2);
    const absl::Status status = CheckFolders(options_);
    std::_Exit(status.ok() ? 0 : ValuesOf(status)["field"] == "--model-root" ? 1 : 2);  // no search for leaks
  };
  EXPECT_EXIT(check_as_a_user(), ::testing::ExitedWithCode(0), "");
  options_.allow_model_upload = true;
  EXPECT_EXIT(check_as_a_user(), ::testing::ExitedWithCode(1), "");
}

TEST_F(FolderChecksTest, SpansGoToAFileInAFolder) {
  options_.otlp_file = folder_.path() + "/spans";
  EXPECT_TRUE(CheckFolders(options_).ok());
  options_.otlp_file = folder_.path();
  ExpectRefused("--otlp-file", folder_.path());
  options_.otlp_file = folder_.path() + "/missing/spans";
  ExpectRefused("--otlp-file", folder_.path() + "/missing/spans");
}

}  // namespace
}  // namespace penstock
