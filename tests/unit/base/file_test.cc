#include "engine/base/file.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/failing_new.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string pattern = ::testing::TempDir() + "penstock-file-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  void Write(const std::string& name, const std::string& bytes) {
    auto file = files_->Create(Path(name));
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append(bytes).ok());
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE((*file)->Close().ok());
  }

  FileSystem* const files_ = RealFileSystem();
  std::string folder_;
};

// Limits the size of the files that this process writes, as a full disk or a quota would.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);  // the write fails with EFBIG instead
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

TEST_F(FileTest, ReadsWhatWasAppended) {
  const std::string bytes("a\0b\xff\n", 5);
  Write("x", bytes);
  EXPECT_EQ(files_->Read(Path("x")).value(), bytes);
}

TEST_F(FileTest, AnEmptyFileReadsAsNothing) {
  Write("x", "");
  EXPECT_EQ(files_->Read(Path("x")).value(), "");
}

TEST_F(FileTest, TellsWhatHasComeSoFarWhereItStays) {
  for (const size_t size : {size_t{3}, size_t{700'001}}) {  // within a string's own place, and more than one piece
    std::string content(size, 'a');
    for (size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i % 251);
    Write("x", content);
    std::string bytes;
    std::vector<std::string_view> told;
    ASSERT_TRUE(files_
                    ->ReadInto(
                        Path("x"), [&](std::string_view so_far) { told.push_back(so_far); }, &bytes)
                    .ok());
    ASSERT_FALSE(told.empty());
    EXPECT_EQ(told.size() > 1, size > 100);
    const std::string moved = std::move(bytes);
    EXPECT_EQ(moved, content);
    EXPECT_EQ(told.back().size(), size);
    for (const std::string_view so_far : told) EXPECT_EQ(so_far.data(), moved.data());
  }
}

TEST_F(FileTest, CreateEmptiesAnOlderFileAndKeepsItFromOthers) {
  Write("x", "a longer text");
  Write("x", "short");
  EXPECT_EQ(files_->Read(Path("x")).value(), "short");
  struct stat info;
  ASSERT_EQ(::stat(Path("x").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(FileTest, AMissingFileIsNotFoundAndOnlyTheValueNamesThePath) {
  const absl::Status status = files_->Read(Path("gone")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("gone")));
  EXPECT_EQ(ValuesOf(status).at("path"), Path("gone"));
}

TEST_F(FileTest, OnlyRegularFilesAreReadAndNothingIsWaitedFor) {
  const std::string pipe = Path("pipe");  // nobody writes it or reads it
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {folder_, pipe, std::string("/dev/zero")}) {
    const absl::Status status = files_->Read(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_EQ(ValuesOf(status).at("path"), path);
  }
  EXPECT_FALSE(files_->Create(pipe).ok());
}

TEST_F(FileTest, AFullDiskIsStorageFullAndTheProcessGoesOn) {
  auto file = files_->Create(Path("x"));
  ASSERT_TRUE(file.ok());
  absl::Status status;
  {
    FileSizeLimit limit(4096);
    status = (*file)->Append(std::string(10000, 'x'));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "STORAGE_FULL");
  EXPECT_EQ(ValuesOf(status).at("path"), Path("x"));
  EXPECT_TRUE((*file)->Append("more").ok()) << "a later write works once there is room";
}

TEST_F(FileTest, WithoutDescriptorsItIsNoBug) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer's checks need descriptors themselves";
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status created = files_->Create(Path("x")).status();
  const absl::Status listed = files_->List(Path("")).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  for (const absl::Status& refused : {created, listed}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_EQ(ReasonOf(refused), "HOST_MEMORY");
  }
}

TEST_F(FileTest, TheDevicesOwnNoSpaceErrorIsStorageFull) {
  auto file = files_->Create("/dev/full");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(ReasonOf((*file)->Append("x")), "STORAGE_FULL");
}

TEST_F(FileTest, RenameReplacesTheTarget) {
  Write("old", "old");
  Write("new", "new");
  ASSERT_TRUE(files_->Rename(Path("new"), Path("old")).ok());
  EXPECT_EQ(files_->Read(Path("old")).value(), "new");
  EXPECT_FALSE(files_->Exists(Path("new")));
}

TEST_F(FileTest, RenamingAMissingFileIsNotFound) {
  EXPECT_EQ(files_->Rename(Path("gone"), Path("x")).code(), absl::StatusCode::kNotFound);
}

TEST_F(FileTest, ListAnswersNamesInOrder) {
  Write("b", "");
  Write("a", "");
  ASSERT_TRUE(files_->CreateDirectories(Path("c/d")).ok());
  EXPECT_THAT(files_->List(folder_).value(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(files_->List(Path("gone")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FileTest, CreatingDirectoriesTwiceIsFineButNotOverAFile) {
  EXPECT_TRUE(files_->CreateDirectories(Path("c/d")).ok());
  EXPECT_TRUE(files_->CreateDirectories(Path("c/d")).ok());
  Write("file", "");
  EXPECT_FALSE(files_->CreateDirectories(Path("file/d")).ok());
}

TEST_F(FileTest, RemoveAllTakesATreeAndAcceptsThatItIsGone) {
  ASSERT_TRUE(files_->CreateDirectories(Path("c/d")).ok());
  Write("c/d/x", "x");
  EXPECT_TRUE(files_->RemoveAll(Path("c")).ok());
  EXPECT_FALSE(files_->Exists(Path("c")));
  EXPECT_TRUE(files_->RemoveAll(Path("c")).ok());
}

}  // namespace
}  // namespace penstock
