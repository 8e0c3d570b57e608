#include "engine/journal/database.h"

#include <sqlite3.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "engine/journal/network_file_system.h"
#include "engine/journal/wal_check.h"

namespace penstock {
namespace {

constexpr int kOpenFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;

int NoteLogPages(void* pages, sqlite3*, const char*, int count) {
  *static_cast<int64_t*>(pages) = count;
  return SQLITE_OK;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// A file that only its owner may read; SQLite by itself would let everybody.
absl::Status MakePrivateFile(FileSystem* files, const std::string& path) {
  if (files->Exists(path)) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files->Create(path));
  return file->Close();
}

}  // namespace

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(statement_, other.statement_);
  std::swap(database_, other.database_);
  std::swap(bound_, other.bound_);
  return *this;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::Bind(int parameter, int64_t value) {
  const int code = sqlite3_bind_int64(statement_, parameter, value);
  if (bound_ == SQLITE_OK) bound_ = code;
  return *this;
}

Statement& Statement::Bind(int parameter, std::string_view blob) {
  // A null pointer would bind NULL.
  const char* bytes = blob.data() == nullptr ? "" : blob.data();
  const int code = sqlite3_bind_blob64(statement_, parameter, bytes, blob.size(), SQLITE_STATIC);
  if (bound_ == SQLITE_OK) bound_ = code;
  return *this;
}

Statement& Statement::BindNull(int parameter) {
  const int code = sqlite3_bind_null(statement_, parameter);
  if (bound_ == SQLITE_OK) bound_ = code;
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  int code = std::exchange(bound_, SQLITE_OK);
  if (code == SQLITE_OK) code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  absl::Status failed;
  if (code != SQLITE_DONE) failed = database_->Failed(code, "statement");
  Reset();
  if (!failed.ok()) return failed;
  return false;
}

absl::Status Statement::Run() {
  absl::Status status = Step().status();
  Reset();
  return status;
}

void Statement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

int64_t Statement::Integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::string_view Statement::Blob(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return {static_cast<const char*>(bytes), bytes == nullptr ? 0 : static_cast<size_t>(size)};
}

bool Statement::IsNull(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, Options options) {
  FileSystem* files = options.files == nullptr ? RealFileSystem() : options.files;
  if (options.vfs == nullptr) PENSTOCK_RETURN_IF_ERROR(RefuseNetworkFileSystem(FolderOf(path)));
  PENSTOCK_RETURN_IF_ERROR(MakePrivateFile(files, path));
  std::unique_ptr<Database> database(new Database);
  if (const int code = sqlite3_open_v2(path.c_str(), &database->connection_, kOpenFlags, options.vfs);
      code != SQLITE_OK) {
    return FromSqlite(database->connection_, code, "open");
  }
  PENSTOCK_RETURN_IF_ERROR(database->CheckLog(path, files));
  PENSTOCK_RETURN_IF_ERROR(database->Configure());
  PENSTOCK_RETURN_IF_ERROR(database->Migrate(options.migrations));
  return database;
}

Database::~Database() {
  if (connection_ != nullptr) PENSTOCK_CHECK(sqlite3_close(connection_) == SQLITE_OK);  // no statement outlives it
}

// Under the database's lock: the log of a process that is at work changes while it is read, and is not to be judged.
absl::Status Database::CheckLog(const std::string& path, FileSystem* files) {
  sqlite3_file* file = nullptr;
  int code = sqlite3_file_control(connection_, "main", SQLITE_FCNTL_FILE_POINTER, &file);
  if (code == SQLITE_OK) code = file->pMethods->xLock(file, SQLITE_LOCK_SHARED);
  if (code != SQLITE_OK) return FromSqlite(nullptr, code, "lock");
  const absl::Cleanup unlock = [file] { file->pMethods->xUnlock(file, SQLITE_LOCK_NONE); };
  const std::string log_path = absl::StrCat(path, "-wal");
  if (!files->Exists(log_path)) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(const std::string log, files->Read(log_path));
  return CheckWal(log).status();
}

absl::Status Database::Configure() {
  // Exclusive locking comes first: it keeps the log's index in this process's memory.
  PENSTOCK_RETURN_IF_ERROR(Pragma("PRAGMA locking_mode=EXCLUSIVE").status());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string mode, Pragma("PRAGMA journal_mode=WAL"));
  if (mode != "wal") return Bug("the journal", absl::StrCat("journal_mode is ", mode));
  PENSTOCK_RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL", "configure"));
  PENSTOCK_RETURN_IF_ERROR(Execute("PRAGMA cell_size_check=ON", "configure"));
  PENSTOCK_RETURN_IF_ERROR(Execute("PRAGMA temp_store=MEMORY", "configure"));
  PENSTOCK_RETURN_IF_ERROR(Pragma("PRAGMA wal_autocheckpoint=0").status());
  sqlite3_wal_hook(connection_, NoteLogPages, &log_pages_);  // after the pragma, which takes the hook away
  sqlite3_db_config(connection_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  // Takes the lock, and holds it.
  PENSTOCK_RETURN_IF_ERROR(Begin());
  return Commit();
}

absl::Status Database::Migrate(const std::vector<std::string>& migrations) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, Pragma("PRAGMA user_version"));
  int64_t version = 0;
  if (!absl::SimpleAtoi(text, &version) || version < 0) return JournalCorrupt("its version is no number");
  const auto newest = static_cast<int64_t>(migrations.size());
  if (version > newest) {
    return Error(absl::StatusCode::kFailedPrecondition, "JOURNAL_VERSION",
                 absl::StrCat("the journal was written by a newer release: its version is ", version,
                              ", this release knows ", newest))
        .With("version", std::to_string(version))
        .With("newest", std::to_string(newest));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckTables(migrations, version));
  for (; version < newest; ++version) {
    PENSTOCK_RETURN_IF_ERROR(Begin());
    absl::Cleanup roll_back = [this] { RollBack(); };
    PENSTOCK_RETURN_IF_ERROR(Execute(migrations[static_cast<size_t>(version)], "migrate"));
    PENSTOCK_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA user_version=", version + 1), "migrate"));
    std::move(roll_back).Cancel();
    PENSTOCK_RETURN_IF_ERROR(Commit());
  }
  return absl::OkStatus();
}

// A damaged definition may still be one: a table of which SQLite expects something else, or a view that never ends.
absl::Status Database::CheckTables(const std::vector<std::string>& migrations, int64_t version) {
  Database right;
  if (const int code = sqlite3_open_v2(":memory:", &right.connection_, kOpenFlags, nullptr); code != SQLITE_OK) {
    return FromSqlite(right.connection_, code, "open a database in memory");
  }
  for (int64_t i = 0; i < version; ++i) {
    PENSTOCK_RETURN_IF_ERROR(right.Execute(migrations[static_cast<size_t>(i)], "migrate in memory"));
  }
  constexpr char kDefinitions[] = "SELECT type, name, tbl_name, sql FROM sqlite_schema";
  PENSTOCK_ASSIGN_OR_RETURN(Statement there, Prepare(kDefinitions));
  PENSTOCK_ASSIGN_OR_RETURN(Statement expected, right.Prepare(kDefinitions));
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool one_more, there.Step());
    PENSTOCK_ASSIGN_OR_RETURN(const bool one_expected, expected.Step());
    bool same = one_more == one_expected;
    if (same && !one_more) return absl::OkStatus();
    for (int column = 0; same && column < 4; ++column) same = there.Blob(column) == expected.Blob(column);
    if (!same) return JournalCorrupt(absl::StrCat("its tables are not those of its version, ", version));
  }
}

absl::Status Database::Execute(const std::string& sql, std::string_view operation) {
  const int code = sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Failed(code, operation);
}

absl::StatusOr<std::string> Database::Pragma(const std::string& sql) {
  PENSTOCK_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  PENSTOCK_ASSIGN_OR_RETURN(const bool row, statement.Step());
  std::string value = row ? std::string(statement.Blob(0)) : "";
  statement.Reset();
  return value;
}

absl::StatusOr<Statement> Database::Prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(connection_, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                                      &statement, nullptr);
  // The statements are ours, and right: the file has other tables, or tables in a form that SQLite does not know.
  if (code == SQLITE_ERROR) return JournalCorrupt(sqlite3_errmsg(connection_));
  if (code != SQLITE_OK) return Failed(code, "prepare");
  return Statement(statement, this);
}

absl::Status Database::Begin() {
  if (!stopped_.ok()) return stopped_;
  return Execute("BEGIN IMMEDIATE", "begin");
}

absl::Status Database::Commit() {
  if (!stopped_.ok()) {
    RollBack();
    return stopped_;
  }
  absl::Status status = Execute("COMMIT", "commit");
  if (!status.ok()) RollBack();
  return status;
}

void Database::RollBack() {
  if (sqlite3_get_autocommit(connection_) != 0) return;  // SQLite has done it by itself
  sqlite3_exec(connection_, "ROLLBACK", nullptr, nullptr, nullptr);
}

absl::Status Database::Checkpoint(bool cut) {
  if (!stopped_.ok()) return stopped_;
  const int mode = cut ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE;
  int pages = 0;
  const int code = sqlite3_wal_checkpoint_v2(connection_, "main", mode, &pages, nullptr);
  if (code != SQLITE_OK) return Failed(code, "checkpoint");
  log_pages_ = 0;  // the next commit writes from the log's beginning
  return absl::OkStatus();
}

void Database::Stop(const absl::Status& cause) {
  if (!stopped_.ok()) return;
  stopped_ =
      ReasonOf(cause) == "JOURNAL_STOPPED" ? cause : JournalStopped({cause.message().data(), cause.message().size()});
  LogError("a journal has stopped", {{"cause", std::string(stopped_.message())}});
}

absl::Status Database::Failed(int code, std::string_view operation) {
  absl::Status status = FromSqlite(connection_, code, operation);
  if (ReasonOf(status) == "JOURNAL_STOPPED") Stop(status);
  return status;
}

void Database::ForgetPages() { sqlite3_db_release_memory(connection_); }

absl::Status Database::Close() { return stopped_.ok() ? Checkpoint(/*cut=*/true) : stopped_; }

absl::StatusOr<std::unique_ptr<DatabaseBackup>> DatabaseBackup::Begin(Database* from, const std::string& path,
                                                                      const Database::Options& options) {
  FileSystem* files = options.files == nullptr ? RealFileSystem() : options.files;
  if (files->Exists(path)) return InvalidField("folder", "holds a journal already", "");
  PENSTOCK_RETURN_IF_ERROR(MakePrivateFile(files, path));
  std::unique_ptr<DatabaseBackup> backup(new DatabaseBackup);
  int code = sqlite3_open_v2(path.c_str(), &backup->copy_, kOpenFlags, options.vfs);
  // The copy is written with a rollback journal. EXTRA also syncs the folder once that is deleted: if it came back, it
  // would undo the whole copy.
  if (code == SQLITE_OK) code = sqlite3_exec(backup->copy_, "PRAGMA synchronous=EXTRA", nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return FromSqlite(backup->copy_, code, "open the copy");
  backup->backup_ = sqlite3_backup_init(backup->copy_, "main", from->connection_, "main");
  if (backup->backup_ == nullptr) {
    return FromSqlite(backup->copy_, sqlite3_extended_errcode(backup->copy_), "begin the copy");
  }
  return backup;
}

DatabaseBackup::~DatabaseBackup() {
  if (backup_ != nullptr) sqlite3_backup_finish(backup_);
  if (copy_ != nullptr) PENSTOCK_CHECK(sqlite3_close(copy_) == SQLITE_OK);
}

absl::StatusOr<bool> DatabaseBackup::Step() {
  int code = sqlite3_backup_step(backup_, kPagesPerStep);
  if (code == SQLITE_OK) return false;
  const int finished = sqlite3_backup_finish(std::exchange(backup_, nullptr));
  if (code == SQLITE_DONE) code = finished;
  if (code != SQLITE_OK) return FromSqlite(copy_, code, "copy");
  return true;
}

}  // namespace penstock
