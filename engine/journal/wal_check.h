#pragma once

// The frames of a write-ahead log of SQLite, walked before SQLite opens it.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

// What SQLite will take from a log that has passed the check.
struct WalSummary {
  int64_t frames = 0;   // up to the last commit before anything broken
  int64_t commits = 0;  // among them
  bool torn = false;    // something unfinished stands behind
};

// Tells damage in the middle of a log from a torn tail. SQLite forgets everything behind a broken frame without a word;
// damage there would lose acknowledged calls.
//
// Model:     A log is a header (magic number, page size, two salts, checksum) and frames: page number, size of the
//            database for a commit, the salts, a checksum over all frames before, and the page. Frames of other salts
//            are left from before the log was begun anew. Each commit is synced before the next one begins, so power
//            that fails can break the last commit alone, and in any of its pages. So a commit of the current salts that
//            ends behind a broken frame, with yet more frames of the current salts behind it, shows damage; so does a
//            header that is broken with a commit behind it.
//            Damage in the last commit can't be told from a torn one here: AcknowledgedMark sees that.
// Threads:   a function of its argument.
// Fails:     DATA_LOSS / JOURNAL_CORRUPT, naming the frame; frames count from 1.
absl::StatusOr<WalSummary> CheckWal(std::string_view log);

}  // namespace penstock
