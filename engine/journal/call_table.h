#pragma once

// The tables of a pipeline's journal: rows in, rows out, each verified when it is read.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/journal/call_row.h"
#include "engine/journal/database.h"

namespace penstock {

// Where the chain of checksums begins and ends, so that no row can vanish at either end. Stands in a table of one row,
// which each transaction writes.
struct ChainEnds {
  int64_t commits = 0;        // transactions so far
  int64_t cut_sequence = 0;   // the last row that was cut from the front; 0: none
  uint32_t cut_checksum = 0;  // of that row: the first row kept goes over it
  int64_t last_sequence = 0;  // the newest row, cut or kept; 0: none ever
  uint32_t last_checksum = 0;
  int64_t outcomes = 0;  // rows of the table of outcomes
};

// When a recorded outcome may be forgotten.
struct OutcomeRetention {
  int64_t entries = 100'000;  // so many newest ones are kept for kept_nanos
  int64_t kept_nanos = int64_t{24} * 3600 * 1'000'000'000;
  int64_t min_nanos = int64_t{600} * 1'000'000'000;  // all others, so long
};

// Reads and writes the rows of calls and outcomes.
//
// Model:     Table calls: the accepted part of each call that a replay may need. It never changes, so that an outcome
//            does not write the inputs again. Table outcomes: how each call went, with all that a retry needs, also of
//            calls that were cut. A call without one is ACCEPTED. Table chain: ChainEnds. Table blobs: see Blobs.
// Owns:      its statements; the Database must outlive it.
// Threads:   those of the database. Writes belong into a transaction.
// Fails:     JOURNAL_CORRUPT for what is not as it was written, naming the sequence; else as Database.
class CallTable {
 public:
  static std::vector<std::string> Migrations();
  static absl::StatusOr<std::unique_ptr<CallTable>> Open(Database* database);

  absl::Status Insert(const CallRow& row);
  absl::Status InsertOutcome(const RecordedCall& call);
  absl::Status WriteChain(const ChainEnds& ends);

  // What was written last; a new database has the default.
  absl::StatusOr<ChainEnds> ReadChain();
  // The first row with at least this sequence, with its outcome. `before`: the checksum of the row before it; unset:
  // that is not checked, but must be where nothing else has checked it.
  absl::StatusOr<std::optional<CallRow>> ReadRow(int64_t from, std::optional<uint32_t> before);
  absl::StatusOr<std::optional<RecordedCall>> ReadOutcome(int64_t sequence);
  // The sequences of outcomes after `after`, or before it where the newest come first; at most `limit`.
  absl::StatusOr<std::vector<int64_t>> OutcomeSequences(int64_t after, bool newest_first, int64_t limit);
  // All outcomes, oldest first.
  absl::Status VisitOutcomes(const std::function<absl::Status(const RecordedCall&)>& visit);

  // One row that was cut.
  struct Cut {
    int64_t sequence = 0;
    uint32_t checksum = 0;
    std::vector<StoredInput> inputs = {};  // of a row that has some in files
  };
  // Deletes the oldest rows up to that sequence, `limit` of them at most.
  absl::StatusOr<std::vector<Cut>> CutRows(int64_t up_to, int64_t limit);
  // Deletes the outcomes of rows that were cut and need not be kept at `now`, and returns them without their bytes.
  absl::StatusOr<std::vector<RecordedCall>> ForgetOutcomes(const OutcomeRetention& retention, const ChainEnds& ends,
                                                           int64_t now_unix_nanos);

 private:
  CallTable() = default;

  Statement insert_;
  Statement insert_outcome_;
  Statement write_chain_;
  Statement read_chain_;
  Statement read_row_;
  Statement read_outcome_;
  Statement visit_outcomes_;
  Statement outcomes_after_;
  Statement outcomes_before_;
  Statement read_cut_;
  Statement delete_rows_;
  Statement newest_kept_;
  Statement read_forgotten_;
  Statement delete_outcome_;
};

}  // namespace penstock
