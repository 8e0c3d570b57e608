#pragma once

// The durable record of what belongs to the daemon and to no pipeline: which pipelines there are, and who asked for
// them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/journal/acknowledged_mark.h"
#include "engine/journal/call_row.h"
#include "engine/journal/call_table.h"
#include "engine/journal/database.h"

namespace penstock {

class Clock;
class FileSystem;

// What is needed to make a pipeline again as it was. The journal looks at the name only.
struct JournalledPipeline {
  std::string name = {};
  std::string life = {};  // tells it from others that had or will have its name; its journal's folder
  std::string owner = {};
  std::string specification = {};  // as checkpoints keep it, with the plan, which is not searched again
  std::string fingerprint = {};    // of the build and the machine
  int64_t create_unix_nanos = 0;
};

// From which checkpoint inference of a pipeline is answered.
struct JournalledPublication {
  std::string pipeline = {};
  std::string life = {};        // of the pipeline: one of another life means nothing
  std::string checkpoint = {};  // empty: nothing is published any more
  int64_t version = 0;          // the last that was given
  int64_t step = 0;
  int64_t unix_nanos = 0;
};

// That a pipeline is unloaded: it stands on disk alone, and a start does not make it.
struct JournalledUnload {
  std::string pipeline = {};
  std::string life = {};  // of the pipeline: one of another life means nothing
  int64_t unix_nanos = 0;
};

// A request that creates, updates, unloads, loads or deletes a pipeline, or publishes a checkpoint.
struct PipelineRequest {
  std::string identity = {};
  std::string method = {};  // "CreatePipeline"
  std::string request_id = {};
  std::string pipeline = {};
  std::string payload_digest = {};
  CallStatus status = CallStatus::kAccepted;
  int64_t unix_nanos = 0;    // 0: now
  std::string outcome = {};  // what a retry gets
};

// The daemon's own database.
//
// Model:     Four tables: pipelines by name, what is published of them, which are unloaded, and requests by identity, method
//            and request id.
//            Each row has a checksum. A change writes them at once: a request is accepted with the row of its pipeline,
//            and settled with the next one. What is published goes with its pipeline, and so does that it is unloaded.
// Owns:      The files daemon.db, daemon.db-wal and daemon.db-acknowledged of its folder. Nobody else opens them.
// Threads:   Any method from any thread. Write() waits for the disk: only threads that may do so call it.
// Lifecycle: Open(); then at will. Close() and the destructor end it.
// Fails:     As Database; JOURNAL_CORRUPT for a row that is not as it was written. A change that fails has changed
//            nothing, but for JOURNAL_STOPPED: then whether it is there is unknown until the next Open().
class DaemonJournal {
 public:
  struct Options {
    OutcomeRetention retention = {};
    FileSystem* files = nullptr;  // null: the machine's; usually only tests set this
    const char* vfs = nullptr;    // SQLite's name of it; null: the machine's; usually only tests set this
  };
  // What is written at once.
  struct Change {
    std::optional<JournalledPipeline> put = {};             // replaces one of its name
    std::optional<std::string> remove = {};                 // a pipeline's name
    std::optional<JournalledPublication> publication = {};  // replaces that of its pipeline
    std::optional<JournalledUnload> unload = {};            // the pipeline is unloaded from now on
    std::optional<std::string> load = {};                   // a pipeline's name: it is not any more
    std::optional<PipelineRequest> request = {};            // replaces one of its identity, method and request id
  };

  // The folder is made if it is missing; the folder above it must be there.
  static absl::StatusOr<std::unique_ptr<DaemonJournal>> Open(const std::string& folder, Clock* clock, Options options);
  ~DaemonJournal() { Close().IgnoreError(); }

  // Makes a change durable. Requests that need not be kept any more go with it.
  absl::Status Write(const Change& change) ABSL_LOCKS_EXCLUDED(mu_);
  // By name.
  absl::StatusOr<std::vector<JournalledPipeline>> Pipelines() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<JournalledPublication>> Publications() ABSL_LOCKS_EXCLUDED(mu_);  // by pipeline
  absl::StatusOr<std::vector<JournalledUnload>> Unloads() ABSL_LOCKS_EXCLUDED(mu_);            // by pipeline
  absl::StatusOr<std::optional<PipelineRequest>> FindRequest(const std::string& identity, const std::string& method,
                                                             const std::string& request_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies it into another folder, which must be there, with the names that its files have here.
  absl::Status BackUp(const std::string& folder) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  DaemonJournal(Clock* clock, const Options& options) : clock_(clock), options_(options) {}
  absl::Status OpenFiles(const std::string& folder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Verify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<JournalledPipeline>> ReadPipelines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<JournalledPublication>> ReadPublications() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::vector<JournalledUnload>> ReadUnloads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status VerifyRequests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status WriteRows(const Change& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ForgetRequests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  const Options options_;

  absl::Mutex mu_;  // the file: one change or question at a time
  std::unique_ptr<Database> database_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<AcknowledgedMark> mark_ ABSL_GUARDED_BY(mu_);
  int64_t commits_ ABSL_GUARDED_BY(mu_) = 0;
  // Statements, destroyed before the database.
  Statement put_pipeline_ ABSL_GUARDED_BY(mu_);
  Statement remove_pipeline_ ABSL_GUARDED_BY(mu_);
  Statement read_pipelines_ ABSL_GUARDED_BY(mu_);
  Statement put_publication_ ABSL_GUARDED_BY(mu_);
  Statement remove_publication_ ABSL_GUARDED_BY(mu_);
  Statement read_publications_ ABSL_GUARDED_BY(mu_);
  Statement put_unload_ ABSL_GUARDED_BY(mu_);
  Statement remove_unload_ ABSL_GUARDED_BY(mu_);
  Statement read_unloads_ ABSL_GUARDED_BY(mu_);
  Statement put_request_ ABSL_GUARDED_BY(mu_);
  Statement find_request_ ABSL_GUARDED_BY(mu_);
  Statement read_requests_ ABSL_GUARDED_BY(mu_);
  Statement forget_requests_ ABSL_GUARDED_BY(mu_);
  Statement read_commits_ ABSL_GUARDED_BY(mu_);
  Statement write_commits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
