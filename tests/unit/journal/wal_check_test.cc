#include "engine/journal/wal_check.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/journal/database.h"
#include "tests/support/unsynced_disk.h"

namespace penstock {
namespace {

using testing::UnsyncedDisk;

constexpr size_t kHeader = 32;
constexpr size_t kFrame = 24 + 4096;

// A log that SQLite wrote: one table, then so many commits of several frames each.
class WalCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Database>> opened = Database::Open(
        "/j.db",
        {.migrations = {"CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)"}, .files = &disk_, .vfs = disk_.vfs()});
    ASSERT_TRUE(opened.ok()) << opened.status();
    database_ = *std::move(opened);
  }
  void Commit(int rows) {
    absl::StatusOr<Statement> insert = database_->Prepare("INSERT INTO t(b) VALUES(?1)");
    ASSERT_TRUE(insert.ok());
    for (int i = 0; i < rows; ++i) {
      ASSERT_TRUE(database_->Begin().ok());
      ASSERT_TRUE(insert->Bind(1, std::string(6000, static_cast<char>('a' + i % 26))).Run().ok());
      ASSERT_TRUE(database_->Commit().ok());
    }
  }
  std::string Log() { return *disk_.Read("/j.db-wal"); }
  static bool IsCommit(const std::string& log, size_t frame) {
    return log.substr(kHeader + frame * kFrame + 4, 4) != std::string(4, '\0');
  }
  static size_t Frames(const std::string& log) { return (log.size() - kHeader) / kFrame; }
  // The frame that ends the n-th commit from the end, 0 being the last.
  static size_t CommitFromEnd(const std::string& log, int n) {
    size_t frame = Frames(log);
    for (int found = -1; found < n;) found += IsCommit(log, --frame) ? 1 : 0;
    return frame;
  }
  static std::string Flipped(std::string log, size_t frame, size_t offset) {
    log[kHeader + frame * kFrame + offset] ^= 1;
    return log;
  }
  static std::string Reason(const std::string& log) { return ReasonOf(CheckWal(log).status()); }

  UnsyncedDisk disk_;
  std::unique_ptr<Database> database_;
};

TEST_F(WalCheck, ALogThatSqliteWroteIsWhole) {
  Commit(10);
  const absl::StatusOr<WalSummary> summary = CheckWal(Log());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_GE(summary->commits, 11);
  EXPECT_EQ(summary->frames, static_cast<int64_t>(Frames(Log())));
  EXPECT_FALSE(summary->torn);
}

TEST_F(WalCheck, AByteOfAnyPartOfAFrameBeforeTheLastCommitIsDamage) {
  Commit(5);
  const std::string log = Log();
  const size_t last_synced = CommitFromEnd(log, 1);
  for (size_t frame = 0; frame <= last_synced; ++frame) {
    for (const size_t offset : {0, 6, 9, 13, 17, 21, 24, 4119}) {
      EXPECT_EQ(Reason(Flipped(log, frame, offset)), "JOURNAL_CORRUPT") << "frame " << frame << " byte " << offset;
    }
  }
}

TEST_F(WalCheck, WhatIsCutOffAnywhereInTheLastCommitIsTorn) {
  Commit(5);
  const std::string log = Log();
  const size_t from = kHeader + (CommitFromEnd(log, 1) + 1) * kFrame;
  for (size_t size = from; size < log.size(); size += 512) {
    const absl::StatusOr<WalSummary> summary = CheckWal(log.substr(0, size));
    ASSERT_TRUE(summary.ok()) << size << ": " << summary.status();
    EXPECT_EQ(summary->frames, static_cast<int64_t>(CommitFromEnd(log, 1)) + 1);
    EXPECT_EQ(summary->torn, size != from);
  }
}

TEST_F(WalCheck, AFrameOfTheLastCommitThatDidNotArriveIsTorn) {
  Commit(5);
  std::string log = Log();
  const size_t first = CommitFromEnd(log, 1) + 1;
  ASSERT_GT(CommitFromEnd(log, 0), first);  // it has several frames
  log.replace(kHeader + first * kFrame, kFrame, std::string(kFrame, '\0'));
  const absl::StatusOr<WalSummary> summary = CheckWal(log);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_TRUE(summary->torn);
  EXPECT_EQ(summary->frames, static_cast<int64_t>(first));
}

TEST_F(WalCheck, FramesFromBeforeTheLogWasBegunAnewCountForNothing) {
  Commit(20);
  ASSERT_TRUE(database_->Checkpoint().ok());
  Commit(2);
  const std::string log = Log();
  const absl::StatusOr<WalSummary> summary = CheckWal(log);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->commits, 2);
  EXPECT_TRUE(summary->torn);
  // Damage in what is left over hurts nobody; in the first commit of two it does.
  EXPECT_EQ(Reason(Flipped(log, Frames(log) - 1, 100)), "");
  EXPECT_EQ(Reason(Flipped(log, 0, 100)), "JOURNAL_CORRUPT");
}

TEST_F(WalCheck, ABrokenHeaderBeforeCommitsIsDamage) {
  Commit(3);
  for (size_t offset = 0; offset < kHeader; ++offset) {
    std::string log = Log();
    log[offset] ^= 1;
    EXPECT_EQ(Reason(log), "JOURNAL_CORRUPT") << offset;
  }
}

TEST_F(WalCheck, AnEmptyOrShortLogIsNoDamage) {
  Commit(1);
  for (const size_t size : {size_t{0}, size_t{10}, kHeader, kHeader + 30}) {
    EXPECT_EQ(Reason(Log().substr(0, size)), "") << size;
  }
  std::string broken = Log().substr(0, kHeader + 1000);
  broken[3] ^= 1;
  EXPECT_EQ(Reason(broken), "");
}

TEST_F(WalCheck, TheErrorNamesTheFrame) {
  Commit(5);
  const absl::Status status = CheckWal(Flipped(Log(), 2, 100)).status();
  EXPECT_NE(std::string(status.message()).find("frame 3 "), std::string::npos) << status;
}

}  // namespace
}  // namespace penstock
