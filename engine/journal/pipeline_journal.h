#pragma once

// The durable record of one pipeline's calls: what it accepted, in which order, and how each call went.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"
#include "engine/journal/acknowledged_mark.h"
#include "engine/journal/blobs.h"
#include "engine/journal/call_row.h"
#include "engine/journal/call_table.h"
#include "engine/journal/database.h"
#include "engine/journal/journal_inspection.h"
#include "engine/journal/request_index.h"

namespace penstock {

class Clock;
class FileSystem;

// Makes calls durable before they are acknowledged, and outcomes before they are told.
//
//   Append, RecordOutcome, Cut ──▶ queue ──▶ ps-journal: inputs to files ─▶ one transaction ─▶ one sync ─▶ callbacks
//
// Model:     One thread takes what is in the queue as a group and commits it with one sync. An outcome goes with the
//            calls that are in the queue, and by itself where there are none: it never waits for one. Large inputs are
//            files (Blobs). A call is in the journal until a checkpoint holds its effect and Cut() takes it; its
//            outcome stays, as OutcomeRetention says. The log is written into the database when the queue is empty, or
//            when it has become too long.
// Owns:      A folder: journal.db, journal.db-wal, journal.db-acknowledged, blobs/. Nobody else opens them: a program
//            that closes a file of SQLite takes the locks away. FileSystem and Clock must outlive it.
// Threads:   Any method from any thread; callbacks come on the journal's thread `ps-journal`, under no lock, in order
//            of the sequences; after Close() on the caller's. A callback may call the journal, but for Close().
// Lifecycle: Open(); Read() for the replay; then the rest. Close() commits what is in the queue. The destructor closes.
// Units:     Bytes. Sequences rise from call to call and may leave numbers out; none is used twice, but for one that
//            was refused.
// Fails:     Open(): as Database, and JOURNAL_CORRUPT by name for whatever is not what was written. Append():
//            STORAGE_FULL while the disk has less room than the headroom and the call need; nothing is accepted then,
//            and the next one is tried anew. JOURNAL_STOPPED after a failed write or sync, until the journal is opened
//            again: whether the calls that were in it are there is unknown till then. Reads go on.
class PipelineJournal {
 public:
  struct Options {
    int64_t max_inline_bytes = int64_t{256} << 10;  // of an input that stands in its row
    int64_t max_group_bytes = int64_t{8} << 20;     // of the inputs in one transaction; one call may have more
    int64_t idle_log_pages = 250;                   // the log is written into the database at leisure beyond these
    int64_t max_log_pages = 16'384;                 // and at once beyond these: 64 MiB
    int64_t headroom_bytes = int64_t{72} << 20;     // kept free for outcomes and for the log's way into the database
    int64_t rows_per_cut = 1'000;                   // in one transaction
    OutcomeRetention retention = {};
    // Bytes that may still be written to the folder's disk; null: the machine's. Usually only tests set these three.
    std::function<int64_t()> free_bytes = nullptr;
    FileSystem* files = nullptr;  // null: the machine's
    const char* vfs = nullptr;    // SQLite's name of it; null: the machine's
  };
  using Done = std::function<void(const absl::Status&)>;

  // What stands behind the last cut: what a replay costs.
  struct ReplaySize {
    int64_t rows = 0;
    int64_t bytes = 0;
    int64_t run_nanos = 0;  // of the calls that have an outcome
  };

  // The folder is made if it is missing; the folder above it must be there. `clock`: for the age of outcomes.
  static absl::StatusOr<std::unique_ptr<PipelineJournal>> Open(const std::string& folder, Clock* clock,
                                                               Options options);
  ~PipelineJournal() { Close().IgnoreError(); }

  // Makes a call durable. Of `call`, inputs, checksum and outcome are not read. Sequences must rise in the order of the
  // calls of this method. The digest of a large input is taken here unless it is given.
  void Append(CallRow call, std::vector<JournalInput> inputs, Done durable) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes durable how a call went. Once for each call, after its Append().
  void RecordOutcome(int64_t sequence, JournalOutcome outcome, Done durable) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the calls up to that sequence, whose effect a checkpoint holds. All of them must have an outcome.
  void Cut(int64_t up_to, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  ReplaySize replay_size() const ABSL_LOCKS_EXCLUDED(index_mu_);
  ReplaySize replay_size(int64_t up_to) const ABSL_LOCKS_EXCLUDED(index_mu_);  // of the calls up to that sequence
  // What finding calls by their request ids takes of the heap.
  int64_t index_bytes() const ABSL_LOCKS_EXCLUDED(index_mu_) {
    absl::MutexLock lock(&index_mu_);
    return requests_.bytes();
  }
  int64_t last_sequence() const ABSL_LOCKS_EXCLUDED(index_mu_);  // that is durable; 0: none ever
  int64_t cut_sequence() const ABSL_LOCKS_EXCLUDED(index_mu_);   // the last that was cut

  // The calls from that sequence on that are durable, one after another; an error of `visit` ends it.
  absl::Status Read(int64_t from, const std::function<absl::Status(CallRow)>& visit) ABSL_LOCKS_EXCLUDED(database_mu_);
  // The bytes of an input of a row, compared with their digest.
  absl::StatusOr<std::string> ReadInput(const StoredInput& input) const;
  // The call with this request id: with its outcome, or with kAccepted where it has none yet. Empty: there is none that
  // is durable and not forgotten.
  absl::StatusOr<std::optional<RecordedCall>> FindRequest(const std::string& identity, const std::string& method,
                                                          const std::string& request_id)
      ABSL_LOCKS_EXCLUDED(database_mu_, index_mu_);

  // Calls without their inputs: those after `after`, or before it where the newest come first, at most `limit`; 0: from
  // the beginning. Of calls that were cut, as long as their outcomes are kept, what those have.
  absl::StatusOr<std::vector<ListedCall>> List(int64_t after, bool newest_first, int64_t limit)
      ABSL_LOCKS_EXCLUDED(database_mu_, index_mu_);
  // The same of the calls that have an outcome, oldest first, without what their rows say.
  absl::StatusOr<std::vector<ListedCall>> Outcomes(int64_t after, int64_t limit) ABSL_LOCKS_EXCLUDED(database_mu_);
  // Reads everything from the disk and compares it with what was written, while calls go on. `wanted`: asked between
  // calls: no gives it up, CANCELLED; null: yes.
  JournalCheck Check(const std::function<bool()>& wanted = nullptr) ABSL_LOCKS_EXCLUDED(database_mu_);

  // Copies the journal into a new folder, from which another one can be opened. Calls go on; what becomes durable while
  // the database is copied may come along.
  absl::Status BackUp(const std::string& folder) ABSL_LOCKS_EXCLUDED(mu_, database_mu_);

  // What comes later is refused with JOURNAL_STOPPED.
  absl::Status Close() ABSL_LOCKS_EXCLUDED(mu_, database_mu_);

 private:
  struct NewCall {
    CallRow row;
    std::vector<JournalInput> inputs;
    Done done;
    absl::Status refused = {};  // it alone
  };
  struct NewOutcome {
    int64_t sequence = 0;
    JournalOutcome outcome;
    Done done;
    absl::Status refused = {};
  };
  struct CutRequest {
    int64_t up_to = 0;
    Done done;
    absl::Status refused = {};
    bool ended = false;
  };
  // What is committed together. Lists: to hand them on takes no memory, so that no callback is lost.
  struct Group {
    std::list<NewCall> calls;
    std::list<NewOutcome> outcomes;
    std::list<CutRequest> cuts;  // one at most
  };

  PipelineJournal(std::string folder, Clock* clock, Options options)
      : folder_(std::move(folder)), clock_(clock), options_(std::move(options)) {}

  absl::Status OpenFiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_mu_);
  // Compares what the rows say with what else is known of them.
  absl::Status Verify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_mu_, index_mu_);
  absl::Status VerifyCalls() ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_mu_, index_mu_);
  absl::Status VerifyOutcomes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_mu_, index_mu_);
  absl::Status CheckCalls(const std::function<bool()>& wanted, JournalCheck* check) ABSL_LOCKS_EXCLUDED(database_mu_);
  absl::Status CheckOutcomes(JournalCheck* check) ABSL_LOCKS_EXCLUDED(database_mu_);
  absl::StatusOr<std::optional<ListedCall>> ListOne(int64_t sequence) ABSL_LOCKS_EXCLUDED(database_mu_);

  // The thread's.
  void Run();
  Group NextGroup() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CommitGroup(Group group) ABSL_LOCKS_EXCLUDED(mu_, database_mu_, index_mu_);
  void RefuseCalls(Group& group, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_, index_mu_);
  absl::Status Prepare(Group& group) ABSL_LOCKS_EXCLUDED(database_mu_);
  absl::Status StoreInputs(NewCall& call);
  absl::Status Write(Group& group) ABSL_LOCKS_EXCLUDED(database_mu_, index_mu_);
  absl::Status WriteCalls(Group& group, ChainEnds* ends) ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_mu_);
  absl::Status WriteOutcomes(Group& group, ChainEnds* ends, std::vector<RecordedCall>* recorded)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_mu_) ABSL_LOCKS_EXCLUDED(index_mu_);
  absl::Status WriteCut(CutRequest& cut, const std::vector<RecordedCall>& recorded, ChainEnds* ends,
                        std::vector<RecordedCall>* forgotten) ABSL_EXCLUSIVE_LOCKS_REQUIRED(database_mu_)
      ABSL_LOCKS_EXCLUDED(index_mu_);
  void NoteDurable(const Group& group, const ChainEnds& ends, const std::vector<RecordedCall>& recorded,
                   const std::vector<RecordedCall>& forgotten) ABSL_LOCKS_EXCLUDED(index_mu_);
  // Writes the log into the database where it is time to.
  void TendLog() ABSL_LOCKS_EXCLUDED(mu_, database_mu_);

  const std::string folder_;
  Clock* const clock_;
  const Options options_;

  // The queue.
  mutable absl::Mutex mu_;
  std::list<NewCall> calls_ ABSL_GUARDED_BY(mu_);
  std::list<NewOutcome> outcomes_ ABSL_GUARDED_BY(mu_);
  std::list<CutRequest> cuts_ ABSL_GUARDED_BY(mu_);
  int64_t newest_sequence_ ABSL_GUARDED_BY(mu_) = 0;  // that was given to Append()
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  // The files: one transaction, read or step of a copy at a time.
  absl::Mutex database_mu_ ABSL_ACQUIRED_BEFORE(index_mu_);
  std::unique_ptr<Database> database_ ABSL_GUARDED_BY(database_mu_);
  std::unique_ptr<Blobs> blobs_;  // the thread's, but for its references and holds: those are under the lock
  std::unique_ptr<CallTable> table_ ABSL_GUARDED_BY(database_mu_);
  std::unique_ptr<AcknowledgedMark> mark_ ABSL_GUARDED_BY(database_mu_);

  // What a row costs in a replay.
  struct RowCost {
    int64_t bytes = 0;
    int64_t run_nanos = 0;
  };

  // What is known of durable rows without reading them.
  mutable absl::Mutex index_mu_;
  ChainEnds ends_ ABSL_GUARDED_BY(index_mu_);
  ReplaySize size_ ABSL_GUARDED_BY(index_mu_);
  RequestIndex requests_ ABSL_GUARDED_BY(index_mu_);
  std::map<int64_t, RecordedCall> open_ ABSL_GUARDED_BY(index_mu_);  // calls without an outcome, by sequence
  std::map<int64_t, RowCost> costs_ ABSL_GUARDED_BY(index_mu_);      // of the rows behind the last cut, by sequence

  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
