#include "engine/journal/call_table.h"

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"

namespace penstock {
namespace {

// Texts stand as bytes: nothing converts or compares them as anything else. What may be long comes last in a row, so
// that the rest is read without it.
constexpr char kFirstForm[] = R"(
CREATE TABLE calls(
  sequence INTEGER PRIMARY KEY,
  identity BLOB NOT NULL,
  method BLOB NOT NULL,
  request_id BLOB NOT NULL,
  payload_digest BLOB NOT NULL,
  micro_batches INTEGER NOT NULL,
  forward_sequence INTEGER NOT NULL,
  accepted_unix_nanos INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  files INTEGER NOT NULL,
  parameters BLOB NOT NULL,
  inputs BLOB NOT NULL
) STRICT;
CREATE TABLE outcomes(
  sequence INTEGER PRIMARY KEY,
  identity BLOB NOT NULL,
  method BLOB NOT NULL,
  request_id BLOB NOT NULL,
  payload_digest BLOB NOT NULL,
  accepted_checksum INTEGER NOT NULL,
  status INTEGER NOT NULL,
  draw_base INTEGER NOT NULL,
  run_nanos INTEGER NOT NULL,
  settled_unix_nanos INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  outcome BLOB NOT NULL
) STRICT;
CREATE TABLE blobs(
  digest BLOB PRIMARY KEY,
  bytes INTEGER NOT NULL,
  refs INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE chain(
  id INTEGER PRIMARY KEY CHECK(id = 1),
  commits INTEGER NOT NULL,
  cut_sequence INTEGER NOT NULL,
  cut_checksum INTEGER NOT NULL,
  last_sequence INTEGER NOT NULL,
  last_checksum INTEGER NOT NULL,
  outcomes INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
)";

constexpr char kOutcomeColumns[] =
    "sequence, identity, method, request_id, payload_digest, accepted_checksum, status, draw_base, run_nanos, "
    "settled_unix_nanos, checksum";

uint32_t ChecksumOfEnds(const ChainEnds& ends) {
  FieldChecksum sum("chain", 0);
  sum.Add(ends.commits).Add(ends.cut_sequence).Add(static_cast<int64_t>(ends.cut_checksum)).Add(ends.last_sequence);
  return sum.Add(static_cast<int64_t>(ends.last_checksum)).Add(ends.outcomes).value();
}

// No journal comes near these; beyond them the sums over its rows would not be numbers any more.
constexpr int64_t kMostCount = int64_t{1} << 62;
constexpr int64_t kMostRunNanos = int64_t{1} << 53;  // 104 days

bool InRange(const ChainEnds& ends) {
  return ends.commits >= 0 && ends.commits < kMostCount && ends.outcomes >= 0 && ends.cut_sequence >= 0 &&
         ends.cut_sequence <= ends.last_sequence && ends.last_sequence < kMostCount;
}

bool InRange(const JournalOutcome& outcome) {
  return outcome.status >= CallStatus::kDone && outcome.status <= CallStatus::kCancelled && outcome.run_nanos >= 0 &&
         outcome.run_nanos < kMostRunNanos;
}

std::string TextAt(const Statement& statement, int column) { return std::string(statement.Blob(column)); }

int64_t FilesOf(const CallRow& row) {
  int64_t files = 0;
  for (const StoredInput& input : row.inputs) files += input.in_file() ? 1 : 0;
  return files;
}

// All but the outcome's bytes.
RecordedCall RecordedAt(const Statement& row) {
  return {.sequence = row.Integer(0),
          .identity = TextAt(row, 1),
          .method = TextAt(row, 2),
          .request_id = TextAt(row, 3),
          .payload_digest = TextAt(row, 4),
          .accepted_checksum = static_cast<uint32_t>(row.Integer(5)),
          .outcome = {.status = static_cast<CallStatus>(row.Integer(6)),
                      .draw_base = row.Integer(7),
                      .run_nanos = row.Integer(8),
                      .settled_unix_nanos = row.Integer(9)}};
}

absl::StatusOr<RecordedCall> VerifiedOutcome(const Statement& row) {
  RecordedCall call = RecordedAt(row);
  call.outcome.bytes = TextAt(row, 11);
  if (RecordedChecksum(call) != row.Integer(10)) {
    return JournalCorrupt(absl::StrCat("the outcome of call ", call.sequence, " does not match its checksum"));
  }
  if (InRange(call.outcome)) return call;
  return JournalCorrupt(absl::StrCat("the outcome of call ", call.sequence, " has a status or a time that none has"));
}

}  // namespace

std::vector<std::string> CallTable::Migrations() { return {kFirstForm}; }

absl::StatusOr<std::unique_ptr<CallTable>> CallTable::Open(Database* database) {
  std::unique_ptr<CallTable> table(new CallTable);
  const auto prepare = [database](Statement* statement, const std::string& sql) {
    absl::StatusOr<Statement> prepared = database->Prepare(sql);
    if (!prepared.ok()) return prepared.status();
    *statement = *std::move(prepared);
    return absl::OkStatus();
  };
  const std::string outcome_columns = kOutcomeColumns;
  const std::pair<Statement*, std::string> statements[] = {
      {&table->insert_, "INSERT INTO calls VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"},
      {&table->insert_outcome_, "INSERT INTO outcomes VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"},
      {&table->write_chain_, "INSERT OR REPLACE INTO chain VALUES(1, ?1, ?2, ?3, ?4, ?5, ?6, ?7)"},
      {&table->read_chain_, "SELECT * FROM chain WHERE id = 1"},
      {&table->read_row_, "SELECT * FROM calls WHERE sequence >= ?1 ORDER BY sequence LIMIT 1"},
      {&table->read_outcome_, "SELECT " + outcome_columns + ", outcome FROM outcomes WHERE sequence = ?1"},
      {&table->visit_outcomes_, "SELECT " + outcome_columns + ", outcome FROM outcomes ORDER BY sequence"},
      {&table->outcomes_after_, "SELECT sequence FROM outcomes WHERE sequence > ?1 ORDER BY sequence LIMIT ?2"},
      {&table->outcomes_before_, "SELECT sequence FROM outcomes WHERE sequence < ?1 ORDER BY sequence DESC LIMIT ?2"},
      {&table->read_cut_,
       "SELECT sequence, checksum, CASE WHEN files > 0 THEN inputs END FROM calls WHERE sequence <= ?1 "
       "ORDER BY sequence LIMIT ?2"},
      {&table->delete_rows_, "DELETE FROM calls WHERE sequence <= ?1"},
      {&table->newest_kept_, "SELECT sequence FROM outcomes ORDER BY sequence DESC LIMIT 1 OFFSET ?1"},
      {&table->read_forgotten_, "SELECT " + outcome_columns +
                                    " FROM outcomes WHERE sequence <= ?1 AND (settled_unix_nanos <= ?2 OR "
                                    "(sequence <= ?3 AND settled_unix_nanos <= ?4))"},
      {&table->delete_outcome_, "DELETE FROM outcomes WHERE sequence = ?1"},
  };
  for (const auto& [statement, sql] : statements) PENSTOCK_RETURN_IF_ERROR(prepare(statement, sql));
  return table;
}

absl::Status CallTable::Insert(const CallRow& row) {
  const std::string inputs = FormatInputs(row.inputs);
  insert_.Bind(1, row.sequence).Bind(2, row.identity).Bind(3, row.method).Bind(4, row.request_id);
  insert_.Bind(5, row.payload_digest).Bind(6, row.micro_batches).Bind(7, row.forward_sequence);
  insert_.Bind(8, row.accepted_unix_nanos).Bind(9, static_cast<int64_t>(row.checksum)).Bind(10, FilesOf(row));
  return insert_.Bind(11, row.parameters).Bind(12, inputs).Run();
}

absl::Status CallTable::InsertOutcome(const RecordedCall& call) {
  const JournalOutcome& outcome = call.outcome;
  insert_outcome_.Bind(1, call.sequence).Bind(2, call.identity).Bind(3, call.method).Bind(4, call.request_id);
  insert_outcome_.Bind(5, call.payload_digest).Bind(6, static_cast<int64_t>(call.accepted_checksum));
  insert_outcome_.Bind(7, static_cast<int64_t>(outcome.status)).Bind(8, outcome.draw_base).Bind(9, outcome.run_nanos);
  insert_outcome_.Bind(10, outcome.settled_unix_nanos).Bind(11, static_cast<int64_t>(RecordedChecksum(call)));
  return insert_outcome_.Bind(12, outcome.bytes).Run();
}

absl::Status CallTable::WriteChain(const ChainEnds& ends) {
  write_chain_.Bind(1, ends.commits).Bind(2, ends.cut_sequence).Bind(3, static_cast<int64_t>(ends.cut_checksum));
  write_chain_.Bind(4, ends.last_sequence).Bind(5, static_cast<int64_t>(ends.last_checksum)).Bind(6, ends.outcomes);
  return write_chain_.Bind(7, static_cast<int64_t>(ChecksumOfEnds(ends))).Run();
}

absl::StatusOr<ChainEnds> CallTable::ReadChain() {
  PENSTOCK_ASSIGN_OR_RETURN(const bool row, read_chain_.Step());
  if (!row) return ChainEnds();
  const ChainEnds ends{.commits = read_chain_.Integer(1),
                       .cut_sequence = read_chain_.Integer(2),
                       .cut_checksum = static_cast<uint32_t>(read_chain_.Integer(3)),
                       .last_sequence = read_chain_.Integer(4),
                       .last_checksum = static_cast<uint32_t>(read_chain_.Integer(5)),
                       .outcomes = read_chain_.Integer(6)};
  const bool right = read_chain_.Integer(7) == ChecksumOfEnds(ends);
  read_chain_.Reset();
  if (!right) return JournalCorrupt("the ends of the chain do not match their checksum");
  if (!InRange(ends)) return JournalCorrupt("the ends of the chain are none that a chain has");
  return ends;
}

absl::StatusOr<std::optional<CallRow>> CallTable::ReadRow(int64_t from, std::optional<uint32_t> before) {
  PENSTOCK_ASSIGN_OR_RETURN(const bool found, read_row_.Bind(1, from).Step());
  if (!found) return std::optional<CallRow>();
  CallRow row{.sequence = read_row_.Integer(0),
              .identity = TextAt(read_row_, 1),
              .method = TextAt(read_row_, 2),
              .request_id = TextAt(read_row_, 3),
              .payload_digest = TextAt(read_row_, 4),
              .parameters = TextAt(read_row_, 10),
              .micro_batches = read_row_.Integer(5),
              .forward_sequence = read_row_.Integer(6),
              .accepted_unix_nanos = read_row_.Integer(7),
              .checksum = static_cast<uint32_t>(read_row_.Integer(8))};
  const int64_t files = read_row_.Integer(9);
  absl::StatusOr<std::vector<StoredInput>> inputs = ParseInputs(read_row_.Blob(11));
  read_row_.Reset();
  PENSTOCK_ASSIGN_OR_RETURN(row.inputs, std::move(inputs));
  if (files != FilesOf(row)) return JournalCorrupt(absl::StrCat("call ", row.sequence, " has another number of files"));
  if (before.has_value() && AcceptedChecksum(row, *before) != row.checksum) {
    return JournalCorrupt(absl::StrCat("call ", row.sequence, " does not match its checksum and the call before it"));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<RecordedCall> recorded, ReadOutcome(row.sequence));
  if (recorded.has_value()) {
    if (recorded->accepted_checksum != row.checksum) {
      return JournalCorrupt(absl::StrCat("the outcome of call ", row.sequence, " belongs to another call"));
    }
    row.outcome = std::move(recorded->outcome);
  }
  return std::optional<CallRow>(std::move(row));
}

absl::StatusOr<std::optional<RecordedCall>> CallTable::ReadOutcome(int64_t sequence) {
  PENSTOCK_ASSIGN_OR_RETURN(const bool found, read_outcome_.Bind(1, sequence).Step());
  if (!found) return std::optional<RecordedCall>();
  absl::StatusOr<RecordedCall> call = VerifiedOutcome(read_outcome_);
  read_outcome_.Reset();
  PENSTOCK_RETURN_IF_ERROR(call.status());
  return std::optional<RecordedCall>(*std::move(call));
}

absl::StatusOr<std::vector<int64_t>> CallTable::OutcomeSequences(int64_t after, bool newest_first, int64_t limit) {
  Statement& statement = newest_first ? outcomes_before_ : outcomes_after_;
  statement.Bind(1, after).Bind(2, limit);
  std::vector<int64_t> sequences;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, statement.Step());
    if (!found) return sequences;
    sequences.push_back(statement.Integer(0));
  }
}

absl::Status CallTable::VisitOutcomes(const std::function<absl::Status(const RecordedCall&)>& visit) {
  const absl::Cleanup reset = [this] { visit_outcomes_.Reset(); };
  std::optional<int64_t> before;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, visit_outcomes_.Step());
    if (!found) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(const RecordedCall call, VerifiedOutcome(visit_outcomes_));
    // In a damaged tree a row may come again, and again.
    if (before.has_value() && call.sequence <= *before) {
      return JournalCorrupt(absl::StrCat("the outcome of call ", call.sequence, " comes after that of call ", *before));
    }
    before = call.sequence;
    PENSTOCK_RETURN_IF_ERROR(visit(call));
  }
}

absl::StatusOr<std::vector<CallTable::Cut>> CallTable::CutRows(int64_t up_to, int64_t limit) {
  std::vector<Cut> cuts;
  read_cut_.Bind(1, up_to).Bind(2, limit);
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, read_cut_.Step());
    if (!found) break;
    Cut cut{.sequence = read_cut_.Integer(0), .checksum = static_cast<uint32_t>(read_cut_.Integer(1))};
    if (!read_cut_.IsNull(2)) {
      absl::StatusOr<std::vector<StoredInput>> inputs = ParseInputs(read_cut_.Blob(2));
      if (!inputs.ok()) read_cut_.Reset();
      PENSTOCK_ASSIGN_OR_RETURN(cut.inputs, std::move(inputs));
    }
    cuts.push_back(std::move(cut));
  }
  if (!cuts.empty()) PENSTOCK_RETURN_IF_ERROR(delete_rows_.Bind(1, cuts.back().sequence).Run());
  return cuts;
}

absl::StatusOr<std::vector<RecordedCall>> CallTable::ForgetOutcomes(const OutcomeRetention& retention,
                                                                    const ChainEnds& ends, int64_t now_unix_nanos) {
  PENSTOCK_ASSIGN_OR_RETURN(const bool many, newest_kept_.Bind(1, retention.entries).Step());
  const int64_t too_many_up_to = many ? newest_kept_.Integer(0) : 0;
  newest_kept_.Reset();
  std::vector<RecordedCall> forgotten;
  read_forgotten_.Bind(1, ends.cut_sequence).Bind(2, now_unix_nanos - retention.kept_nanos);
  read_forgotten_.Bind(3, too_many_up_to).Bind(4, now_unix_nanos - retention.min_nanos);
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, read_forgotten_.Step());
    if (!found) break;
    forgotten.push_back(RecordedAt(read_forgotten_));
  }
  for (const RecordedCall& call : forgotten) PENSTOCK_RETURN_IF_ERROR(delete_outcome_.Bind(1, call.sequence).Run());
  return forgotten;
}

}  // namespace penstock
