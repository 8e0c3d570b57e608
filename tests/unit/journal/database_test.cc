#include "engine/journal/database.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/journal/network_file_system.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/unsynced_disk.h"

namespace penstock {
namespace {

using testing::TemporaryFolder;
using testing::UnsyncedDisk;

class DatabaseTest : public ::testing::Test {
 protected:
  absl::Status Open(std::vector<std::string> migrations = {"CREATE TABLE t(a INTEGER)"}) {
    database_.reset();
    absl::StatusOr<std::unique_ptr<Database>> opened =
        Database::Open("/j.db", {.migrations = std::move(migrations), .files = &disk_, .vfs = disk_.vfs()});
    if (opened.ok()) database_ = *std::move(opened);
    return opened.status();
  }
  absl::Status Run(std::string_view sql) {
    absl::StatusOr<Statement> statement = database_->Prepare(sql);
    return statement.ok() ? statement->Run() : statement.status();
  }
  absl::Status Insert() {
    if (absl::Status begun = database_->Begin(); !begun.ok()) return begun;
    const absl::Status run = Run("INSERT INTO t VALUES(1)");
    if (!run.ok()) database_->RollBack();
    return run.ok() ? database_->Commit() : run;
  }
  int64_t Count() {
    absl::StatusOr<Statement> statement = database_->Prepare("SELECT count(*) FROM t");
    EXPECT_TRUE(statement.ok() && statement->Step().ok());
    return statement->Integer(0);
  }

  UnsyncedDisk disk_;
  std::unique_ptr<Database> database_;
};

TEST_F(DatabaseTest, EachCommitIsDurable) {
  ASSERT_TRUE(Open().ok());
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(Insert().ok());
    disk_.Crash();
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(Count(), i);
  }
}

TEST_F(DatabaseTest, ATransactionThatIsRolledBackLeavesNothing) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(database_->Begin().ok());
  ASSERT_TRUE(Run("INSERT INTO t VALUES(1)").ok());
  database_->RollBack();
  EXPECT_EQ(Count(), 0);
}

TEST_F(DatabaseTest, MigrationsGoForwardOnceEach) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Insert().ok());
  ASSERT_TRUE(Open({"CREATE TABLE t(a INTEGER)", "ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 5"}).ok());
  absl::StatusOr<Statement> statement = database_->Prepare("SELECT b FROM t");
  ASSERT_TRUE(statement.ok() && statement->Step().ok());
  EXPECT_EQ(statement->Integer(0), 5);
}

TEST_F(DatabaseTest, AFailedMigrationChangesNothing) {
  ASSERT_TRUE(Open().ok());
  EXPECT_FALSE(Open({"CREATE TABLE t(a INTEGER)", "CREATE TABLE u(a INTEGER); nonsense"}).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_FALSE(database_->Prepare("SELECT * FROM u").ok());
}

TEST_F(DatabaseTest, AFileOfANewerReleaseIsRefusedByName) {
  ASSERT_TRUE(Open({"CREATE TABLE t(a INTEGER)", "CREATE TABLE u(a INTEGER)"}).ok());
  const absl::Status refused = Open();
  EXPECT_EQ(ReasonOf(refused), "JOURNAL_VERSION");
  EXPECT_EQ(ValuesOf(refused)["version"], "2");
  EXPECT_EQ(ValuesOf(refused)["newest"], "1");
}

TEST_F(DatabaseTest, OtherTablesThanThoseOfTheVersionAreDamage) {
  for (const char* change : {"CREATE TABLE u(a INTEGER)", "CREATE VIEW v AS SELECT * FROM t", "DROP TABLE t",
                             "ALTER TABLE t RENAME COLUMN a TO b", "PRAGMA user_version=0"}) {
    ASSERT_TRUE(Open().ok()) << change;
    ASSERT_TRUE(Run(change).ok()) << change;
    ASSERT_TRUE(database_->Close().ok());
    const absl::Status refused = Open();
    EXPECT_EQ(ReasonOf(refused), "JOURNAL_CORRUPT") << change << ": " << refused;
    for (const char* path : {"/j.db", "/j.db-wal"}) ASSERT_TRUE(disk_.RemoveAll(path).ok());
  }
}

TEST_F(DatabaseTest, TablesInAFormThatNobodyKnowsAreDamage) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(database_->Close().ok());
  database_.reset();
  constexpr size_t kSchemaFormat = 47;  // of SQLite's header
  disk_.Flip("/j.db", kSchemaFormat);
  EXPECT_EQ(ReasonOf(Open()), "JOURNAL_CORRUPT");
}

TEST_F(DatabaseTest, ASecondConnectionIsLockedOutByName) {
  ASSERT_TRUE(Open().ok());
  const auto second = Database::Open("/j.db", {.files = &disk_, .vfs = disk_.vfs()});
  EXPECT_EQ(ReasonOf(second.status()), "JOURNAL_LOCKED");
}

TEST_F(DatabaseTest, AfterAFailedSyncNothingIsWrittenNorSyncedAndReadsGoOn) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Insert().ok());
  disk_.FailSync(0);
  EXPECT_EQ(ReasonOf(Insert()), "JOURNAL_STOPPED");
  disk_.FailSync(-1);
  const int64_t syncs = disk_.syncs();
  EXPECT_EQ(ReasonOf(Insert()), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(database_->Checkpoint()), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(database_->Close()), "JOURNAL_STOPPED");
  EXPECT_EQ(Count(), 1);
  database_.reset();
  EXPECT_EQ(disk_.syncs(), syncs);
}

TEST_F(DatabaseTest, AFailedSyncOfACheckpointStopsIt) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Insert().ok());
  disk_.FailSync(0);
  EXPECT_EQ(ReasonOf(database_->Checkpoint()), "JOURNAL_STOPPED");
  EXPECT_EQ(Count(), 1);
  disk_.FailSync(-1);
  EXPECT_EQ(ReasonOf(Insert()), "JOURNAL_STOPPED");
}

TEST_F(DatabaseTest, AFullDiskIsNoStop) {
  ASSERT_TRUE(Open().ok());
  disk_.SetFreeBytes(100);
  EXPECT_EQ(ReasonOf(Insert()), "STORAGE_FULL");
  EXPECT_EQ(Count(), 0);
  disk_.SetFreeBytes(-1);
  EXPECT_TRUE(Insert().ok());
}

TEST_F(DatabaseTest, TheLogGoesIntoTheDatabaseAndBeginsAnew) {
  ASSERT_TRUE(Open().ok());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Insert().ok());
  EXPECT_GT(database_->log_pages(), 20);
  const int64_t bytes = disk_.Info("/j.db-wal")->bytes;
  ASSERT_TRUE(database_->Checkpoint().ok());
  EXPECT_EQ(database_->log_pages(), 0);
  ASSERT_TRUE(Insert().ok());
  EXPECT_EQ(disk_.Info("/j.db-wal")->bytes, bytes);  // written from its beginning
  ASSERT_TRUE(database_->Close().ok());
  EXPECT_EQ(disk_.Info("/j.db-wal")->bytes, 0);
}

TEST_F(DatabaseTest, NothingOfItIsForOthersEyes) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/j.db";
  auto opened = Database::Open(path, {.migrations = {"CREATE TABLE t(a INTEGER)"}});
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (const char* end : {"", "-wal"}) {
    const auto mode = std::filesystem::status(path + end).permissions();
    EXPECT_EQ(mode & (std::filesystem::perms::group_all | std::filesystem::perms::others_all),
              std::filesystem::perms::none)
        << end;
  }
}

TEST(NetworkFileSystem, IsKnownByItsName) {
  EXPECT_EQ(NetworkFileSystemName(0x6969), "NFS");
  EXPECT_EQ(NetworkFileSystemName(0xFF534D42), "CIFS");
  EXPECT_EQ(NetworkFileSystemName(static_cast<int32_t>(0xFF534D42)), "CIFS");  // where the type is signed
  EXPECT_EQ(NetworkFileSystemName(0xEF53), "");                                // ext4
  EXPECT_EQ(NetworkFileSystemName(0x01021994), "");                            // tmpfs
  EXPECT_TRUE(absl::IsNotFound(RefuseNetworkFileSystem("/no such folder")));
}

}  // namespace
}  // namespace penstock
