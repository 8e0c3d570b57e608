#pragma once

// The checksums of a journal's rows, made right after rows were changed by SQL.

#include <sqlite3.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/journal/call_row.h"

namespace penstock::testing {

// A statement that gives up where the database is damaged.
class SqlRows {
 public:
  SqlRows(sqlite3* database, const char* sql) { sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr); }
  SqlRows(const SqlRows&) = delete;
  SqlRows& operator=(const SqlRows&) = delete;
  ~SqlRows() { sqlite3_finalize(statement_); }

  bool Next() { return sqlite3_step(statement_) == SQLITE_ROW; }
  int64_t Integer(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Blob(int column) const {
    const void* bytes = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
  }
  SqlRows& Bind(int parameter, int64_t value) {
    sqlite3_bind_int64(statement_, parameter, value);
    return *this;
  }
  SqlRows& Bind(int parameter, const std::string& blob) {
    sqlite3_bind_blob(statement_, parameter, blob.data(), static_cast<int>(blob.size()), SQLITE_TRANSIENT);
    return *this;
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

// A damaged tree may give the same rows for ever.
inline constexpr int kMostRows = 100;

inline void GivePipelineChecksums(sqlite3* database) {
  SqlRows chain(database, "SELECT commits, cut_sequence, cut_checksum FROM chain");
  if (!chain.Next()) return;
  int64_t last = chain.Integer(1);
  auto checksum = static_cast<uint32_t>(chain.Integer(2));
  std::vector<CallRow> calls;
  for (SqlRows rows(database, "SELECT * FROM calls ORDER BY sequence");
       calls.size() < size_t{kMostRows} && rows.Next();) {
    CallRow row{.sequence = rows.Integer(0),
                .identity = rows.Blob(1),
                .method = rows.Blob(2),
                .request_id = rows.Blob(3),
                .payload_digest = rows.Blob(4),
                .parameters = rows.Blob(10),
                .micro_batches = rows.Integer(5),
                .forward_sequence = rows.Integer(6),
                .accepted_unix_nanos = rows.Integer(7)};
    const auto inputs = ParseInputs(rows.Blob(11));
    if (inputs.ok()) row.inputs = *inputs;
    last = row.sequence;
    checksum = row.checksum = AcceptedChecksum(row, checksum);
    calls.push_back(row);
  }
  for (const CallRow& row : calls) {
    SqlRows(database, "UPDATE calls SET checksum = ?2 WHERE sequence = ?1")
        .Bind(1, row.sequence)
        .Bind(2, int64_t{row.checksum})
        .Next();
    SqlRows(database, "UPDATE outcomes SET accepted_checksum = ?2 WHERE sequence = ?1")
        .Bind(1, row.sequence)
        .Bind(2, int64_t{row.checksum})
        .Next();
  }
  std::vector<RecordedCall> outcomes;
  for (SqlRows rows(database, "SELECT * FROM outcomes"); outcomes.size() < size_t{kMostRows} && rows.Next();) {
    outcomes.push_back({.sequence = rows.Integer(0),
                        .identity = rows.Blob(1),
                        .method = rows.Blob(2),
                        .request_id = rows.Blob(3),
                        .payload_digest = rows.Blob(4),
                        .accepted_checksum = static_cast<uint32_t>(rows.Integer(5)),
                        .outcome = {.status = static_cast<CallStatus>(rows.Integer(6)),
                                    .draw_base = rows.Integer(7),
                                    .run_nanos = rows.Integer(8),
                                    .settled_unix_nanos = rows.Integer(9),
                                    .bytes = rows.Blob(11)}});
  }
  for (const RecordedCall& call : outcomes) {
    SqlRows(database, "UPDATE outcomes SET checksum = ?2 WHERE sequence = ?1")
        .Bind(1, call.sequence)
        .Bind(2, int64_t{RecordedChecksum(call)})
        .Next();
  }
  const auto count = static_cast<int64_t>(outcomes.size());
  FieldChecksum sum("chain", 0);
  sum.Add(chain.Integer(0)).Add(chain.Integer(1)).Add(chain.Integer(2) & 0xffffffff).Add(last);
  sum.Add(int64_t{checksum}).Add(count);
  SqlRows(database, "UPDATE chain SET last_sequence = ?1, last_checksum = ?2, outcomes = ?3, checksum = ?4")
      .Bind(1, last)
      .Bind(2, int64_t{checksum})
      .Bind(3, count)
      .Bind(4, int64_t{sum.value()})
      .Next();
}

inline void GiveDaemonChecksums(sqlite3* database) {
  struct Row {
    std::string key;
    int64_t checksum;
  };
  std::vector<Row> pipelines;
  for (SqlRows rows(database, "SELECT * FROM pipelines"); pipelines.size() < size_t{kMostRows} && rows.Next();) {
    FieldChecksum sum("pipeline", 0);
    sum.Add(rows.Blob(0)).Add(rows.Blob(1)).Add(rows.Blob(2)).Add(rows.Blob(3)).Add(rows.Blob(4)).Add(rows.Integer(5));
    pipelines.push_back({rows.Blob(0), sum.value()});
  }
  for (const Row& row : pipelines) {
    SqlRows(database, "UPDATE pipelines SET checksum = ?2 WHERE name = ?1")
        .Bind(1, row.key)
        .Bind(2, row.checksum)
        .Next();
  }
  std::vector<Row> requests;
  for (SqlRows rows(database, "SELECT * FROM requests"); requests.size() < size_t{kMostRows} && rows.Next();) {
    FieldChecksum sum("request", 0);
    sum.Add(rows.Blob(0)).Add(rows.Blob(1)).Add(rows.Blob(2)).Add(rows.Blob(3)).Add(rows.Blob(4));
    sum.Add(int64_t{static_cast<int32_t>(rows.Integer(5))}).Add(rows.Integer(6)).Add(rows.Blob(7));
    requests.push_back({rows.Blob(2), sum.value()});
  }
  for (const Row& row : requests) {
    SqlRows(database, "UPDATE requests SET checksum = ?2 WHERE request_id = ?1")
        .Bind(1, row.key)
        .Bind(2, row.checksum)
        .Next();
  }
}

}  // namespace penstock::testing
