#include "engine/journal/journal_errors.h"

#include <sqlite3.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"

namespace penstock {
namespace {

absl::string_view AbseilView(std::string_view text) { return {text.data(), text.size()}; }

// What SQLite says, with the number, which names the operation of the disk that failed.
std::string SqliteText(sqlite3* connection, int code, std::string_view operation) {
  const char* text = connection == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(connection);
  return absl::StrCat(AbseilView(operation), ": ", text, " (", code, ")");
}

bool IsFailedRead(int code) {
  return code == SQLITE_IOERR_READ || code == SQLITE_IOERR_SHORT_READ || code == SQLITE_IOERR_CORRUPTFS ||
         code == SQLITE_IOERR_DATA;
}

}  // namespace

absl::Status JournalCorrupt(std::string_view damage) {
  return Error(absl::StatusCode::kDataLoss, "JOURNAL_CORRUPT",
               absl::StrCat("the journal is damaged: ", AbseilView(damage)))
      .With("damage", damage);
}

absl::Status JournalStopped(std::string_view cause) {
  return Error(
      absl::StatusCode::kFailedPrecondition, "JOURNAL_STOPPED",
      absl::StrCat("the journal takes nothing until a restart, since its disk has failed: ", AbseilView(cause)));
}

absl::Status JournalOff() {
  return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED", "this daemon was started with --journal=off")
      .With("field", "--journal")
      .With("value", "off");
}

absl::Status JournalFull(std::string_view operation) {
  return Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL",
               absl::StrCat(AbseilView(operation), ": the disk of the journal is full"));
}

absl::Status FromSqlite(sqlite3* connection, int code, std::string_view operation) {
  const std::string text = SqliteText(connection, code, operation);
  const int system_error = connection == nullptr ? 0 : sqlite3_system_errno(connection);
  switch (code & 0xff) {
    case SQLITE_OK:
      return absl::OkStatus();
    case SQLITE_FULL:
      return JournalFull(operation);
    case SQLITE_IOERR:
      if (IsFailedRead(code)) return JournalCorrupt(text);
      if (code == SQLITE_IOERR_NOMEM) break;
      // A write beyond a quota is a full disk; SQLite knows only of ENOSPC.
      if (code == SQLITE_IOERR_WRITE && (system_error == EDQUOT || system_error == EFBIG))
        return JournalFull(operation);
      return JournalStopped(text);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      return JournalStopped(text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return JournalCorrupt(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Error(absl::StatusCode::kFailedPrecondition, "JOURNAL_LOCKED",
                   absl::StrCat(AbseilView(operation), ": another process has this journal open"));
    case SQLITE_NOMEM:
      break;
    default:
      return Bug("the journal", text);
  }
  return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY",
               absl::StrCat(AbseilView(operation), ": out of host memory"));
}

}  // namespace penstock
