#pragma once

// What can be wrong with a journal, as errors with the reasons that clients and operators read.

#include <string_view>

#include "absl/status/status.h"

struct sqlite3;

namespace penstock {

// DATA_LOSS / JOURNAL_CORRUPT: something is not what was written. `damage` says what, without a path.
absl::Status JournalCorrupt(std::string_view damage);

// FAILED_PRECONDITION / JOURNAL_STOPPED: a write or sync has failed, so nothing is written any more. `cause`: what did.
absl::Status JournalStopped(std::string_view cause);

// UNIMPLEMENTED / FEATURE_DISABLED: the daemon keeps none.
absl::Status JournalOff();

// RESOURCE_EXHAUSTED / STORAGE_FULL.
absl::Status JournalFull(std::string_view operation);

// The error of an operation of SQLite that has failed with `code`.
//
// Fails:     STORAGE_FULL; JOURNAL_STOPPED for a write or sync that the disk refused; JOURNAL_CORRUPT for what can't be
//            read; JOURNAL_LOCKED where another connection has the file; HOST_MEMORY; BUG for the rest.
absl::Status FromSqlite(sqlite3* connection, int code, std::string_view operation);

}  // namespace penstock
