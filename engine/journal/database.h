#pragma once

// One connection to one SQLite database that nobody else has open.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_backup;
struct sqlite3_stmt;

namespace penstock {

class FileSystem;
class Database;

// A prepared statement. Parameters count from 1, columns from 0.
//
// Owns:      the statement; its Database must outlive it. Texts and blobs that are bound must live until the last
//            Step().
// Threads:   those of its Database.
// Example:   PENSTOCK_RETURN_IF_ERROR(insert.Bind(1, sequence).Bind(2, name).Run());
class Statement {
 public:
  Statement() = default;
  Statement(Statement&& other) noexcept
      : statement_(std::exchange(other.statement_, nullptr)), database_(other.database_), bound_(other.bound_) {}
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

  Statement& Bind(int parameter, int64_t value);
  Statement& Bind(int parameter, std::string_view blob);  // as bytes: SQLite then never converts nor cuts them
  Statement& BindNull(int parameter);

  // Goes on to the next row; false: there is none, and the statement can be bound anew. The error of a Bind() comes
  // here.
  absl::StatusOr<bool> Step();
  // Runs a statement that gives no rows, or whose rows nobody wants.
  absl::Status Run();
  // Ends a walk over rows before its end.
  void Reset();

  int64_t Integer(int column) const;
  std::string_view Blob(int column) const;  // until the next Step() or Reset()
  bool IsNull(int column) const;

 private:
  friend class Database;
  Statement(sqlite3_stmt* statement, Database* database) : statement_(statement), database_(database) {}

  sqlite3_stmt* statement_ = nullptr;
  Database* database_ = nullptr;
  int bound_ = 0;  // the first error of a Bind()
};

// Opens a database, brings its tables to the present form, and translates what fails.
//
// Model:     Write-ahead log, `synchronous=FULL`, exclusive locking, no automatic checkpoints. The tables' form is the
//            number of migrations that were applied (`user_version`). The log is walked (CheckWal) before SQLite reads
//            it.
// Owns:      The connection and the files PATH and PATH-wal.
// Threads:   one at a time; the owner has the lock.
// Lifecycle: Open(); Begin(), statements, Commit() or RollBack(). Close() writes the log into the database; the
//            destructor alone writes and syncs nothing.
// Units:     pages, of 4 KiB.
// Fails:     Open(): FIELD_INVALID on a network file system, JOURNAL_LOCKED, JOURNAL_VERSION for a file of a newer
//            program, JOURNAL_CORRUPT, STORAGE_FULL. Later: as FromSqlite(). After a failed write or sync the files are
//            never written nor synced again: Begin() and Checkpoint() give JOURNAL_STOPPED, and reads go on.
class Database {
 public:
  struct Options {
    std::vector<std::string> migrations = {};  // the n-th brings a database from user_version n to n + 1
    FileSystem* files = nullptr;               // null: the machine's; usually only tests set this
    const char* vfs = nullptr;                 // SQLite's name of it; null: the machine's; usually only tests set this
  };

  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, Options options);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  absl::StatusOr<Statement> Prepare(std::string_view sql);
  absl::Status Begin();
  // What fails is rolled back. Of a failed sync the outcome is unknown until the next Open().
  absl::Status Commit();
  void RollBack();

  // What is read next comes from the disk.
  void ForgetPages();
  // Writes the log into the database, syncs it, and lets the log begin anew; with `cut`, the log is emptied as well.
  absl::Status Checkpoint(bool cut = false);
  // Pages of the log since it last began anew.
  int64_t log_pages() const { return log_pages_; }
  // Takes nothing any more, for the reason that is given.
  void Stop(const absl::Status& cause);
  const absl::Status& stopped() const { return stopped_; }  // OK while it is not

  absl::Status Close();

 private:
  friend class Statement;
  friend class DatabaseBackup;

  Database() = default;
  absl::Status CheckLog(const std::string& path, FileSystem* files);
  absl::Status Configure();
  absl::Status Migrate(const std::vector<std::string>& migrations);
  // Compares the tables with those that the migrations up to a version make.
  absl::Status CheckTables(const std::vector<std::string>& migrations, int64_t version);
  absl::Status Execute(const std::string& sql, std::string_view operation);
  absl::StatusOr<std::string> Pragma(const std::string& sql);
  // The error of a failed operation; one of the disk stops the database.
  absl::Status Failed(int code, std::string_view operation);

  sqlite3* connection_ = nullptr;
  int64_t log_pages_ = 0;
  absl::Status stopped_;
};

// Copies a database that is in use, some pages at a time. What is committed meanwhile comes along.
//
// Owns:      the connection to the copy. The database must outlive it.
// Threads:   as the database; between two steps the owner may write.
class DatabaseBackup {
 public:
  static constexpr int kPagesPerStep = 256;

  // `path` must not exist.
  static absl::StatusOr<std::unique_ptr<DatabaseBackup>> Begin(Database* from, const std::string& path,
                                                               const Database::Options& options);
  ~DatabaseBackup();

  // Copies some more pages. True: it is whole and durable.
  absl::StatusOr<bool> Step();

 private:
  DatabaseBackup() = default;

  sqlite3* copy_ = nullptr;
  sqlite3_backup* backup_ = nullptr;
};

}  // namespace penstock
