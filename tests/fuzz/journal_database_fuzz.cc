// Opens foreign databases as journals, and reads and writes what opens. The first byte says whose it is, of a daemon (d)
// or of a pipeline; the second whether its rows get the right checksums; the third how many values are changed by SQL
// first, each by a table, a column, a row, a length and so many bytes. The rest is the file.

#include <sqlite3.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/log.h"
#include "engine/journal/daemon_journal.h"
#include "engine/journal/pipeline_journal.h"
#include "engine/wire/sha256.h"
#include "tests/fuzz/fuzz_checks.h"
#include "tests/fuzz/journal_checksums.h"
#include "tests/support/fake_clock.h"
#include "tests/support/unsynced_disk.h"

namespace {

using penstock::CallRow;
using penstock::DaemonJournal;
using penstock::PipelineJournal;
using penstock::testing::Demand;
using penstock::testing::DemandReason;
using penstock::testing::FakeClock;
using penstock::testing::UnsyncedDisk;

constexpr char kFolder[] = "/state/journal";
constexpr char kCopy[] = "/state/copy";

// Takes numbers and bytes from the front of an input.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : left_(bytes) {}

  size_t Number() {
    const std::string_view taken = Take(1);
    return taken.empty() ? 0 : static_cast<unsigned char>(taken[0]);
  }
  std::string_view Take(size_t count) {
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view left() const { return left_; }

 private:
  std::string_view left_;
};

// Each table with the column that tells its rows apart, and all of its columns.
struct Table {
  const char* name;
  const char* key;
  std::vector<const char*> columns;
};

const std::vector<Table>& TablesOf(bool daemon) {
  static const std::vector<Table> of_daemon = {
      {"pipelines", "name", {"name", "life", "owner", "specification", "fingerprint", "create_unix_nanos", "checksum"}},
      {"requests",
       "request_id",
       {"identity", "method", "request_id", "pipeline", "payload_digest", "status", "unix_nanos", "outcome",
        "checksum"}},
      {"commits", "id", {"id", "commits"}},
      {"sqlite_schema", "rowid", {"type", "name", "tbl_name", "rootpage", "sql"}}};
  static const std::vector<Table> of_pipeline = {
      {"calls",
       "sequence",
       {"sequence", "identity", "method", "request_id", "payload_digest", "micro_batches", "forward_sequence",
        "accepted_unix_nanos", "checksum", "files", "parameters", "inputs"}},
      {"outcomes",
       "sequence",
       {"sequence", "identity", "method", "request_id", "payload_digest", "accepted_checksum", "status", "draw_base",
        "run_nanos", "settled_unix_nanos", "checksum", "outcome"}},
      {"blobs", "digest", {"digest", "bytes", "refs"}},
      {"chain",
       "id",
       {"commits", "cut_sequence", "cut_checksum", "last_sequence", "last_checksum", "outcomes", "checksum"}},
      {"sqlite_schema", "rowid", {"type", "name", "tbl_name", "rootpage", "sql"}}};
  return daemon ? of_daemon : of_pipeline;
}

// The value as what its column holds.
void Bind(sqlite3_stmt* update, const std::string& type, std::string_view value) {
  if (type != "integer") {
    const int size = static_cast<int>(value.size());
    type == "text" ? sqlite3_bind_text(update, 1, value.data(), size, SQLITE_TRANSIENT)
                   : sqlite3_bind_blob(update, 1, value.data(), size, SQLITE_TRANSIENT);
    return;
  }
  int64_t number = !value.empty() && (value.back() & 0x80) != 0 ? -1 : 0;
  for (size_t i = std::min<size_t>(value.size(), 8); i > 0; --i) {
    number = static_cast<int64_t>(static_cast<uint64_t>(number) << 8 | static_cast<unsigned char>(value[i - 1]));
  }
  sqlite3_bind_int64(update, 1, number);
}

void ChangeValue(sqlite3* database, bool daemon, Bytes& bytes) {
  const std::vector<Table>& tables = TablesOf(daemon);
  const Table& table = tables[bytes.Number() % tables.size()];
  const std::string column = table.columns[bytes.Number() % table.columns.size()];
  const std::string row = std::to_string(bytes.Number() % 8);
  const std::string_view value = bytes.Take(bytes.Number() % 128);
  const std::string chosen =
      absl::StrCat("(SELECT ", table.key, " FROM ", table.name, " ORDER BY ", table.key, " LIMIT 1 OFFSET ", row, ")");
  sqlite3_stmt* read = nullptr;
  const std::string type =
      absl::StrCat("SELECT typeof(", column, ") FROM ", table.name, " WHERE ", table.key, " = ", chosen);
  sqlite3_prepare_v2(database, type.c_str(), -1, &read, nullptr);
  if (sqlite3_step(read) == SQLITE_ROW) {
    sqlite3_stmt* update = nullptr;
    const std::string change =
        absl::StrCat("UPDATE ", table.name, " SET ", column, " = ?1 WHERE ", table.key, " = ", chosen);
    sqlite3_prepare_v2(database, change.c_str(), -1, &update, nullptr);
    Bind(update, reinterpret_cast<const char*>(sqlite3_column_text(read, 0)), value);
    sqlite3_reset(read);
    sqlite3_step(update);
    sqlite3_finalize(update);
  }
  sqlite3_finalize(read);
}

// What fails changes nothing: a database that SQLite refuses is an input, too.
void Change(UnsyncedDisk& disk, const std::string& path, bool daemon, bool checksums, size_t changes, Bytes& bytes) {
  sqlite3* database = nullptr;
  if (sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE, disk.vfs()) == SQLITE_OK) {
    for (const char* setting : {"PRAGMA locking_mode=EXCLUSIVE", "PRAGMA writable_schema=ON"}) {
      sqlite3_exec(database, setting, nullptr, nullptr, nullptr);
    }
    for (size_t i = 0; i < changes; ++i) ChangeValue(database, daemon, bytes);
    if (checksums && daemon) penstock::testing::GiveDaemonChecksums(database);
    if (checksums && !daemon) penstock::testing::GivePipelineChecksums(database);
    sqlite3_wal_checkpoint_v2(database, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
  }
  sqlite3_close(database);
}

// Calls of a pipeline's journal that call back are over when this returns.
template <typename Start>
absl::Status Wait(Start start) {
  absl::Notification told;
  absl::Status status;
  start([&](const absl::Status& said) {
    status = said;
    told.Notify();
  });
  told.WaitForNotification();
  DemandReason(status);
  return status;
}

std::vector<int64_t> ReadCalls(PipelineJournal& journal) {
  std::vector<int64_t> sequences;
  bool readable = true;
  const absl::Status read = journal.Read(0, [&](const CallRow& row) {
    Demand(sequences.empty() || sequences.back() < row.sequence, "a call comes twice");
    sequences.push_back(row.sequence);
    for (const penstock::StoredInput& input : row.inputs) {
      const auto content = journal.ReadInput(input);
      DemandReason(content.status());
      readable &= content.ok();
      Demand(!content.ok() || static_cast<int64_t>(content->size()) == input.size, "an input has another size");
    }
    DemandReason(journal.FindRequest(row.identity, row.method, row.request_id).status());
    return absl::OkStatus();
  });
  Demand(read.ok(), "a journal that was verified can't be read");
  Demand(static_cast<int64_t>(sequences.size()) == journal.replay_size().rows, "there are other calls than counted");
  Demand(journal.Check().damage.ok() == readable, "a check finds other damage than a reader");
  for (const bool newest_first : {false, true}) DemandReason(journal.List(0, newest_first, 10).status());
  DemandReason(journal.Outcomes(0, 10).status());
  return sequences;
}

void TryPipeline(UnsyncedDisk& disk) {
  FakeClock clock;
  const PipelineJournal::Options options{.max_inline_bytes = 100,
                                         .headroom_bytes = 0,
                                         .rows_per_cut = 2,
                                         .retention = {.entries = 2},
                                         .free_bytes = [] { return int64_t{1} << 40; },
                                         .files = &disk,
                                         .vfs = disk.vfs()};
  auto journal = PipelineJournal::Open(kFolder, &clock, options);
  DemandReason(journal.status());
  if (!journal.ok()) return;
  std::vector<int64_t> sequences = ReadCalls(**journal);
  const int64_t next = (*journal)->last_sequence() + 1;
  const std::string large(200, 'l');
  const absl::Status appended = Wait([&](auto done) {
    const CallRow row{.sequence = next, .identity = "ann", .method = "TrainStep", .request_id = "new"};
    (*journal)->Append(row, {{.header = "small", .bytes = "s"}, {.header = "large", .bytes = large}}, done);
  });
  absl::Status settled = appended;
  if (appended.ok()) {
    settled = Wait([&](auto done) {
      (*journal)->RecordOutcome(next, {.status = penstock::CallStatus::kDone, .bytes = "done"}, done);
    });
  }
  if (appended.ok()) sequences.push_back(next);
  DemandReason((*journal)->BackUp(kCopy));
  DemandReason((*journal)->Close());
  journal = nullptr;
  for (const char* folder : {kFolder, kCopy}) {
    if (!disk.Exists(folder)) continue;
    journal = PipelineJournal::Open(folder, &clock, options);
    DemandReason(journal.status());
    if (!journal.ok()) continue;
    Demand(ReadCalls(**journal) == sequences, "other calls are there after the journal was opened again");
    const absl::Status cut = Wait([&](auto done) { (*journal)->Cut(next, done); });
    Demand(!cut.ok() || (*journal)->cut_sequence() <= next, "more was cut than was asked for");
  }
}

void TryDaemon(UnsyncedDisk& disk) {
  FakeClock clock;
  const DaemonJournal::Options options{.retention = {.entries = 2}, .files = &disk, .vfs = disk.vfs()};
  auto journal = DaemonJournal::Open(kFolder, &clock, options);
  DemandReason(journal.status());
  if (!journal.ok()) return;
  const auto pipelines = (*journal)->Pipelines();
  Demand(pipelines.ok(), "a journal that was verified can't be read");
  DemandReason((*journal)->FindRequest("ann", "CreatePipeline", "request-1").status());
  const absl::Status written =
      (*journal)->Write({.put = penstock::JournalledPipeline{.name = "new"},
                         .request = penstock::PipelineRequest{.identity = "ann", .request_id = "new"}});
  DemandReason(written);
  Demand(disk.CreateDirectories(kCopy).ok(), "there is no room for a copy");
  DemandReason((*journal)->BackUp(kCopy));
  DemandReason((*journal)->Close());
  journal = nullptr;
  for (const char* folder : {kFolder, kCopy}) {
    journal = DaemonJournal::Open(folder, &clock, options);
    DemandReason(journal.status());
    if (!journal.ok()) continue;
    const auto again = (*journal)->Pipelines();
    Demand(again.ok() && (again->size() == pipelines->size() || written.ok()), "other pipelines are there");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    penstock::ConfigureLog(penstock::LogLevel::kError, penstock::LogFormat::kText);
    return true;
  }();
  Demand(quiet, "the log is set");
  Bytes bytes(std::string_view(reinterpret_cast<const char*>(data), size));
  const bool daemon = bytes.Number() == 'd';
  const bool checksums = bytes.Number() % 2 == 1;
  const size_t changes = bytes.Number() % 8;
  Bytes behind = bytes;  // the file stands behind the changes
  for (size_t i = 0; i < changes; ++i) {
    behind.Take(3);
    behind.Take(behind.Number() % 128);
  }
  UnsyncedDisk disk;
  Demand(disk.CreateDirectories(absl::StrCat(kFolder, "/blobs")).ok(), "there is no folder");
  const std::string content(200, 'c');
  disk.Put(absl::StrCat(kFolder, "/blobs/", penstock::Sha256::Of(content).substr(7)), content);
  const std::string path = absl::StrCat(kFolder, daemon ? "/daemon.db" : "/journal.db");
  disk.Put(path, std::string(behind.left()));
  if (checksums || changes > 0) Change(disk, path, daemon, checksums, changes, bytes);
  daemon ? TryDaemon(disk) : TryPipeline(disk);
  return 0;
}
