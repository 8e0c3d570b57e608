#include "engine/journal/daemon_journal.h"

#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/status_macros.h"
#include "engine/journal/blobs.h"
#include "engine/journal/journal_errors.h"
#include "engine/journal/journal_paths.h"

namespace penstock {
namespace {

// The requests' key is the table's own order, and not an index beside it, which could be damaged alone.
constexpr char kFirstDaemonForm[] = R"(
CREATE TABLE pipelines(
  name BLOB PRIMARY KEY,
  life BLOB NOT NULL,
  owner BLOB NOT NULL,
  specification BLOB NOT NULL,
  fingerprint BLOB NOT NULL,
  create_unix_nanos INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE requests(
  identity BLOB NOT NULL,
  method BLOB NOT NULL,
  request_id BLOB NOT NULL,
  pipeline BLOB NOT NULL,
  payload_digest BLOB NOT NULL,
  status INTEGER NOT NULL,
  unix_nanos INTEGER NOT NULL,
  outcome BLOB NOT NULL,
  checksum INTEGER NOT NULL,
  PRIMARY KEY(identity, method, request_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE commits(id INTEGER PRIMARY KEY CHECK(id = 1), commits INTEGER NOT NULL) STRICT;
)";

constexpr char kPublications[] = R"(
CREATE TABLE publications(
  pipeline BLOB PRIMARY KEY,
  life BLOB NOT NULL,
  checkpoint BLOB NOT NULL,
  version INTEGER NOT NULL,
  step INTEGER NOT NULL,
  unix_nanos INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
)";

constexpr char kUnloads[] = R"(
CREATE TABLE unloads(
  pipeline BLOB PRIMARY KEY,
  life BLOB NOT NULL,
  unix_nanos INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
)";

constexpr int64_t kMostCommits = int64_t{1} << 62;

int64_t ChecksumOfPipeline(const JournalledPipeline& row) {
  FieldChecksum sum("pipeline", 0);
  sum.Add(row.name).Add(row.life).Add(row.owner).Add(row.specification);
  return sum.Add(row.fingerprint).Add(row.create_unix_nanos).value();
}

int64_t ChecksumOfRequest(const PipelineRequest& request) {
  FieldChecksum sum("request", 0);
  sum.Add(request.identity).Add(request.method).Add(request.request_id).Add(request.pipeline);
  sum.Add(request.payload_digest).Add(static_cast<int64_t>(request.status)).Add(request.unix_nanos);
  return sum.Add(request.outcome).value();
}

int64_t ChecksumOfPublication(const JournalledPublication& row) {
  FieldChecksum sum("publication", 0);
  sum.Add(row.pipeline).Add(row.life).Add(row.checkpoint).Add(row.version);
  return sum.Add(row.step).Add(row.unix_nanos).value();
}

int64_t ChecksumOfUnload(const JournalledUnload& row) {
  return FieldChecksum("unload", 0).Add(row.pipeline).Add(row.life).Add(row.unix_nanos).value();
}

std::string BytesAt(const Statement& statement, int column) { return std::string(statement.Blob(column)); }

absl::StatusOr<JournalledPipeline> PipelineAt(const Statement& row) {
  JournalledPipeline pipeline{.name = BytesAt(row, 0),
                              .life = BytesAt(row, 1),
                              .owner = BytesAt(row, 2),
                              .specification = BytesAt(row, 3),
                              .fingerprint = BytesAt(row, 4),
                              .create_unix_nanos = row.Integer(5)};
  if (row.Integer(6) == ChecksumOfPipeline(pipeline)) return pipeline;
  return JournalCorrupt("the row of a pipeline does not match its checksum");
}

absl::StatusOr<JournalledPublication> PublicationAt(const Statement& row) {
  JournalledPublication publication{.pipeline = BytesAt(row, 0),
                                    .life = BytesAt(row, 1),
                                    .checkpoint = BytesAt(row, 2),
                                    .version = row.Integer(3),
                                    .step = row.Integer(4),
                                    .unix_nanos = row.Integer(5)};
  if (row.Integer(6) == ChecksumOfPublication(publication)) return publication;
  return JournalCorrupt("the row of what is published does not match its checksum");
}

absl::StatusOr<JournalledUnload> UnloadAt(const Statement& row) {
  JournalledUnload unload{.pipeline = BytesAt(row, 0), .life = BytesAt(row, 1), .unix_nanos = row.Integer(2)};
  if (row.Integer(3) == ChecksumOfUnload(unload)) return unload;
  return JournalCorrupt("the row of an unloaded pipeline does not match its checksum");
}

absl::StatusOr<PipelineRequest> RequestAt(const Statement& row) {
  PipelineRequest request{.identity = BytesAt(row, 0),
                          .method = BytesAt(row, 1),
                          .request_id = BytesAt(row, 2),
                          .pipeline = BytesAt(row, 3),
                          .payload_digest = BytesAt(row, 4),
                          .status = static_cast<CallStatus>(row.Integer(5)),
                          .unix_nanos = row.Integer(6),
                          .outcome = BytesAt(row, 7)};
  const bool known = request.status >= CallStatus::kAccepted && request.status <= CallStatus::kCancelled;
  if (known && row.Integer(8) == ChecksumOfRequest(request)) return request;
  return JournalCorrupt("the row of a request does not match its checksum");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonJournal>> DaemonJournal::Open(const std::string& folder, Clock* clock,
                                                                   Options options) {
  if (options.files == nullptr) options.files = RealFileSystem();
  std::unique_ptr<DaemonJournal> journal(new DaemonJournal(clock, options));
  absl::MutexLock lock(&journal->mu_);
  PENSTOCK_RETURN_IF_ERROR(journal->OpenFiles(folder));
  PENSTOCK_RETURN_IF_ERROR(journal->Verify());
  return journal;
}

absl::Status DaemonJournal::OpenFiles(const std::string& folder) {
  const JournalPaths paths(folder);
  PENSTOCK_RETURN_IF_ERROR(Blobs::MakeDurableFolder(options_.files, paths.above, paths.name));
  const std::string path = folder + "/daemon.db";
  PENSTOCK_ASSIGN_OR_RETURN(database_, Database::Open(path, {.migrations = {kFirstDaemonForm, kPublications, kUnloads},
                                                             .files = options_.files,
                                                             .vfs = options_.vfs}));
  PENSTOCK_ASSIGN_OR_RETURN(mark_, AcknowledgedMark::Open(path + "-acknowledged", options_.vfs));
  const std::pair<Statement*, const char*> statements[] = {
      {&put_pipeline_, "INSERT OR REPLACE INTO pipelines VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)"},
      {&remove_pipeline_, "DELETE FROM pipelines WHERE name = ?1"},
      {&read_pipelines_, "SELECT * FROM pipelines ORDER BY name"},
      {&put_publication_, "INSERT OR REPLACE INTO publications VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)"},
      {&remove_publication_, "DELETE FROM publications WHERE pipeline = ?1"},
      {&read_publications_, "SELECT * FROM publications ORDER BY pipeline"},
      {&put_unload_, "INSERT OR REPLACE INTO unloads VALUES(?1, ?2, ?3, ?4)"},
      {&remove_unload_, "DELETE FROM unloads WHERE pipeline = ?1"},
      {&read_unloads_, "SELECT * FROM unloads ORDER BY pipeline"},
      {&put_request_, "INSERT OR REPLACE INTO requests VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"},
      {&find_request_, "SELECT * FROM requests WHERE identity = ?1 AND method = ?2 AND request_id = ?3"},
      {&read_requests_, "SELECT * FROM requests ORDER BY identity, method, request_id"},
      // One that is open stays. The newest ones stay longer than the others.
      {&forget_requests_,
       "DELETE FROM requests WHERE status <> 0 AND (unix_nanos <= ?1 OR (unix_nanos <= ?2 AND unix_nanos < "
       "(SELECT unix_nanos FROM requests ORDER BY unix_nanos DESC LIMIT 1 OFFSET ?3)))"},
      {&read_commits_, "SELECT commits FROM commits WHERE id = 1"},
      {&write_commits_, "INSERT OR REPLACE INTO commits VALUES(1, ?1)"},
  };
  for (const auto& [statement, sql] : statements) {
    PENSTOCK_ASSIGN_OR_RETURN(*statement, database_->Prepare(sql));
  }
  return absl::OkStatus();
}

absl::Status DaemonJournal::Verify() {
  PENSTOCK_ASSIGN_OR_RETURN(const bool written, read_commits_.Step());
  commits_ = written ? read_commits_.Integer(0) : 0;
  read_commits_.Reset();
  if (const int64_t acknowledged = mark_->Read(); acknowledged > commits_) {
    return JournalCorrupt(absl::StrCat("it ends at commit ", commits_, ", and ", acknowledged, " was acknowledged"));
  }
  if (commits_ < 0 || commits_ > kMostCommits) return JournalCorrupt("its number of commits is none");
  PENSTOCK_RETURN_IF_ERROR(ReadPipelines().status());
  PENSTOCK_RETURN_IF_ERROR(ReadPublications().status());
  PENSTOCK_RETURN_IF_ERROR(ReadUnloads().status());
  return VerifyRequests();
}

// In a damaged tree a row may come again, and again: then the order ends.
absl::StatusOr<std::vector<JournalledPipeline>> DaemonJournal::ReadPipelines() {
  const absl::Cleanup reset = [this] {
    mu_.AssertHeld();
    read_pipelines_.Reset();
  };
  std::vector<JournalledPipeline> rows;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, read_pipelines_.Step());
    if (!found) return rows;
    PENSTOCK_ASSIGN_OR_RETURN(JournalledPipeline row, PipelineAt(read_pipelines_));
    if (!rows.empty() && row.name <= rows.back().name) return JournalCorrupt("the pipelines are not in their order");
    rows.push_back(std::move(row));
  }
}

absl::StatusOr<std::vector<JournalledPublication>> DaemonJournal::ReadPublications() {
  const absl::Cleanup reset = [this] {
    mu_.AssertHeld();
    read_publications_.Reset();
  };
  std::vector<JournalledPublication> rows;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, read_publications_.Step());
    if (!found) return rows;
    PENSTOCK_ASSIGN_OR_RETURN(JournalledPublication row, PublicationAt(read_publications_));
    if (!rows.empty() && row.pipeline <= rows.back().pipeline) {
      return JournalCorrupt("what is published is not in its order");
    }
    rows.push_back(std::move(row));
  }
}

absl::StatusOr<std::vector<JournalledUnload>> DaemonJournal::ReadUnloads() {
  const absl::Cleanup reset = [this] {
    mu_.AssertHeld();
    read_unloads_.Reset();
  };
  std::vector<JournalledUnload> rows;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, read_unloads_.Step());
    if (!found) return rows;
    PENSTOCK_ASSIGN_OR_RETURN(JournalledUnload row, UnloadAt(read_unloads_));
    if (!rows.empty() && row.pipeline <= rows.back().pipeline) {
      return JournalCorrupt("the unloaded pipelines are not in their order");
    }
    rows.push_back(std::move(row));
  }
}

absl::Status DaemonJournal::VerifyRequests() {
  const absl::Cleanup reset = [this] {
    mu_.AssertHeld();
    read_requests_.Reset();
  };
  std::optional<PipelineRequest> before;
  const auto key = [](const PipelineRequest& row) { return std::tie(row.identity, row.method, row.request_id); };
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool found, read_requests_.Step());
    if (!found) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(PipelineRequest row, RequestAt(read_requests_));
    if (before.has_value() && key(row) <= key(*before)) return JournalCorrupt("the requests are not in their order");
    before = std::move(row);
  }
}

absl::Status DaemonJournal::Write(const Change& change) {
  absl::MutexLock lock(&mu_);
  PENSTOCK_RETURN_IF_ERROR(database_->Begin());
  absl::Cleanup roll_back = [this] {
    mu_.AssertHeld();
    database_->RollBack();
  };
  PENSTOCK_RETURN_IF_ERROR(WriteRows(change));
  PENSTOCK_RETURN_IF_ERROR(ForgetRequests());
  PENSTOCK_RETURN_IF_ERROR(write_commits_.Bind(1, commits_ + 1).Run());
  PENSTOCK_RETURN_IF_ERROR(database_->Commit());
  std::move(roll_back).Cancel();
  mark_->Write(++commits_);
  constexpr int64_t kMaxLogPages = 250;
  // The change is durable, whatever becomes of the log.
  if (database_->log_pages() > kMaxLogPages) database_->Checkpoint().IgnoreError();
  return absl::OkStatus();
}

absl::Status DaemonJournal::WriteRows(const Change& change) {
  if (change.remove.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(remove_pipeline_.Bind(1, *change.remove).Run());
    PENSTOCK_RETURN_IF_ERROR(remove_publication_.Bind(1, *change.remove).Run());
    PENSTOCK_RETURN_IF_ERROR(remove_unload_.Bind(1, *change.remove).Run());
  }
  if (change.put.has_value()) {
    const JournalledPipeline& row = *change.put;
    put_pipeline_.Bind(1, row.name).Bind(2, row.life).Bind(3, row.owner).Bind(4, row.specification);
    put_pipeline_.Bind(5, row.fingerprint).Bind(6, row.create_unix_nanos);
    PENSTOCK_RETURN_IF_ERROR(put_pipeline_.Bind(7, ChecksumOfPipeline(row)).Run());
  }
  if (change.publication.has_value()) {
    const JournalledPublication& row = *change.publication;
    put_publication_.Bind(1, row.pipeline).Bind(2, row.life).Bind(3, row.checkpoint).Bind(4, row.version);
    put_publication_.Bind(5, row.step).Bind(6, row.unix_nanos);
    PENSTOCK_RETURN_IF_ERROR(put_publication_.Bind(7, ChecksumOfPublication(row)).Run());
  }
  if (change.load.has_value()) PENSTOCK_RETURN_IF_ERROR(remove_unload_.Bind(1, *change.load).Run());
  if (change.unload.has_value()) {
    const JournalledUnload& row = *change.unload;
    put_unload_.Bind(1, row.pipeline).Bind(2, row.life).Bind(3, row.unix_nanos);
    PENSTOCK_RETURN_IF_ERROR(put_unload_.Bind(4, ChecksumOfUnload(row)).Run());
  }
  if (!change.request.has_value()) return absl::OkStatus();
  PipelineRequest request = *change.request;
  if (request.unix_nanos == 0) request.unix_nanos = absl::ToUnixNanos(clock_->WallNow());
  put_request_.Bind(1, request.identity).Bind(2, request.method).Bind(3, request.request_id);
  put_request_.Bind(4, request.pipeline).Bind(5, request.payload_digest);
  put_request_.Bind(6, static_cast<int64_t>(request.status)).Bind(7, request.unix_nanos).Bind(8, request.outcome);
  return put_request_.Bind(9, ChecksumOfRequest(request)).Run();
}

absl::Status DaemonJournal::ForgetRequests() {
  const int64_t now = absl::ToUnixNanos(clock_->WallNow());
  const OutcomeRetention& retention = options_.retention;
  forget_requests_.Bind(1, now - retention.kept_nanos).Bind(2, now - retention.min_nanos);
  return forget_requests_.Bind(3, retention.entries - 1).Run();
}

absl::StatusOr<std::vector<JournalledPipeline>> DaemonJournal::Pipelines() {
  absl::MutexLock lock(&mu_);
  return ReadPipelines();
}

absl::StatusOr<std::vector<JournalledPublication>> DaemonJournal::Publications() {
  absl::MutexLock lock(&mu_);
  return ReadPublications();
}

absl::StatusOr<std::vector<JournalledUnload>> DaemonJournal::Unloads() {
  absl::MutexLock lock(&mu_);
  return ReadUnloads();
}

absl::StatusOr<std::optional<PipelineRequest>> DaemonJournal::FindRequest(const std::string& identity,
                                                                          const std::string& method,
                                                                          const std::string& request_id) {
  absl::MutexLock lock(&mu_);
  const absl::Cleanup reset = [this] {
    mu_.AssertHeld();
    find_request_.Reset();
  };
  find_request_.Bind(1, identity).Bind(2, method).Bind(3, request_id);
  PENSTOCK_ASSIGN_OR_RETURN(const bool found, find_request_.Step());
  if (!found) return std::optional<PipelineRequest>();
  PENSTOCK_ASSIGN_OR_RETURN(PipelineRequest request, RequestAt(find_request_));
  return std::optional<PipelineRequest>(std::move(request));
}

absl::Status DaemonJournal::BackUp(const std::string& folder) {
  absl::MutexLock lock(&mu_);  // it is small
  const Database::Options options{.files = options_.files, .vfs = options_.vfs};
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<DatabaseBackup> backup,
                            DatabaseBackup::Begin(database_.get(), folder + "/daemon.db", options));
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool whole, backup->Step());
    if (whole) return absl::OkStatus();
  }
}

absl::Status DaemonJournal::Close() {
  absl::MutexLock lock(&mu_);
  return database_ == nullptr ? absl::OkStatus() : database_->Close();
}

}  // namespace penstock
