// Opening a journal, with all that must be right in it, and reading what is in it.

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "engine/journal/journal_paths.h"
#include "engine/journal/pipeline_journal.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<PipelineJournal>> PipelineJournal::Open(const std::string& folder, Clock* clock,
                                                                       Options options) {
  if (options.files == nullptr) options.files = RealFileSystem();
  std::unique_ptr<PipelineJournal> journal(new PipelineJournal(folder, clock, std::move(options)));
  {
    absl::MutexLock lock(&journal->database_mu_);
    absl::MutexLock index_lock(&journal->index_mu_);
    PENSTOCK_RETURN_IF_ERROR(journal->OpenFiles());
    PENSTOCK_RETURN_IF_ERROR(journal->Verify());
    PENSTOCK_RETURN_IF_ERROR(journal->blobs_->RemoveLeftovers());
  }
  const int64_t last = journal->last_sequence();
  {
    absl::MutexLock lock(&journal->mu_);
    journal->newest_sequence_ = last;
  }
  journal->thread_ = std::make_unique<Thread>("ps-journal", [open = journal.get()] { open->Run(); });
  return journal;
}

absl::Status PipelineJournal::OpenFiles() {
  FileSystem* files = options_.files;
  const JournalPaths paths(folder_);
  PENSTOCK_RETURN_IF_ERROR(Blobs::MakeDurableFolder(files, paths.above, paths.name));
  PENSTOCK_RETURN_IF_ERROR(Blobs::MakeDurableFolder(files, folder_, JournalPaths::kBlobs));
  const Database::Options options{.migrations = CallTable::Migrations(), .files = files, .vfs = options_.vfs};
  PENSTOCK_ASSIGN_OR_RETURN(database_, Database::Open(paths.database, options));
  PENSTOCK_ASSIGN_OR_RETURN(table_, CallTable::Open(database_.get()));
  PENSTOCK_ASSIGN_OR_RETURN(blobs_, Blobs::Open(files, database_.get(), paths.blobs));
  PENSTOCK_ASSIGN_OR_RETURN(mark_, AcknowledgedMark::Open(paths.mark, options_.vfs));
  return absl::OkStatus();
}

absl::Status PipelineJournal::Verify() {
  PENSTOCK_ASSIGN_OR_RETURN(ends_, table_->ReadChain());
  if (const int64_t acknowledged = mark_->Read(); acknowledged > ends_.commits) {
    return JournalCorrupt(
        absl::StrCat("it ends at commit ", ends_.commits, ", and ", acknowledged, " was acknowledged"));
  }
  PENSTOCK_RETURN_IF_ERROR(VerifyCalls());
  return VerifyOutcomes();
}

absl::Status PipelineJournal::VerifyCalls() {
  std::map<std::string, int64_t> references;
  int64_t sequence = ends_.cut_sequence;
  uint32_t checksum = ends_.cut_checksum;
  for (int64_t from = std::numeric_limits<int64_t>::min();; from = sequence + 1) {
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<CallRow> row, table_->ReadRow(from, checksum));
    if (!row.has_value()) break;
    if (row->sequence <= sequence)
      return JournalCorrupt(absl::StrCat("call ", row->sequence, " was cut, and is there"));
    if (row->sequence > ends_.last_sequence) break;
    sequence = row->sequence;
    checksum = row->checksum;
    const RowCost cost{.bytes = ReplayBytes(*row), .run_nanos = row->outcome.run_nanos};
    costs_.emplace(sequence, cost);
    ++size_.rows;
    size_.bytes += cost.bytes;
    size_.run_nanos += cost.run_nanos;
    for (const StoredInput& input : row->inputs) {
      if (!input.in_file()) continue;
      ++references[input.digest];
      PENSTOCK_RETURN_IF_ERROR(blobs_->CheckFile(input.digest, input.size));
    }
    if (row->outcome.status != CallStatus::kAccepted) continue;  // VerifyOutcomes() adds it
    requests_.Add(row->identity, row->method, row->request_id, sequence);
    open_.emplace(sequence, RecordedCall{.sequence = sequence,
                                         .identity = std::move(row->identity),
                                         .method = std::move(row->method),
                                         .request_id = std::move(row->request_id),
                                         .payload_digest = std::move(row->payload_digest),
                                         .accepted_checksum = checksum});
  }
  if (sequence != ends_.last_sequence || checksum != ends_.last_checksum) {
    return JournalCorrupt(absl::StrCat("its last call is ", sequence, ", and must be ", ends_.last_sequence));
  }
  if (references != blobs_->references()) return JournalCorrupt("the table of contents does not match the calls");
  return absl::OkStatus();
}

absl::Status PipelineJournal::VerifyOutcomes() {
  int64_t count = 0;
  PENSTOCK_RETURN_IF_ERROR(table_->VisitOutcomes([&](const RecordedCall& call) {
    index_mu_.AssertHeld();
    ++count;
    if (call.sequence > ends_.cut_sequence && !costs_.contains(call.sequence)) {
      return JournalCorrupt(absl::StrCat("there is an outcome and no call ", call.sequence));
    }
    requests_.Add(call.identity, call.method, call.request_id, call.sequence);
    return absl::OkStatus();
  }));
  if (count == ends_.outcomes) return absl::OkStatus();
  return JournalCorrupt(absl::StrCat("it has ", count, " outcomes, and must have ", ends_.outcomes));
}

PipelineJournal::ReplaySize PipelineJournal::replay_size() const {
  absl::MutexLock lock(&index_mu_);
  return size_;
}

PipelineJournal::ReplaySize PipelineJournal::replay_size(int64_t up_to) const {
  absl::MutexLock lock(&index_mu_);
  ReplaySize size;
  for (auto row = costs_.begin(); row != costs_.end() && row->first <= up_to; ++row) {
    ++size.rows;
    size.bytes += row->second.bytes;
    size.run_nanos += row->second.run_nanos;
  }
  return size;
}

int64_t PipelineJournal::last_sequence() const {
  absl::MutexLock lock(&index_mu_);
  return ends_.last_sequence;
}

int64_t PipelineJournal::cut_sequence() const {
  absl::MutexLock lock(&index_mu_);
  return ends_.cut_sequence;
}

absl::Status PipelineJournal::Read(int64_t from, const std::function<absl::Status(CallRow)>& visit) {
  std::optional<uint32_t> before;  // none is known of a walk that begins in the middle
  while (true) {
    std::optional<CallRow> row;
    {
      absl::MutexLock lock(&database_mu_);
      PENSTOCK_ASSIGN_OR_RETURN(row, table_->ReadRow(from, before));
    }
    if (!row.has_value()) return absl::OkStatus();
    from = row->sequence + 1;
    before = row->checksum;
    PENSTOCK_RETURN_IF_ERROR(visit(*std::move(row)));
  }
}

absl::StatusOr<std::string> PipelineJournal::ReadInput(const StoredInput& input) const {
  if (!input.in_file()) return input.bytes;
  return blobs_->Read(input.digest);
}

absl::StatusOr<std::optional<RecordedCall>> PipelineJournal::FindRequest(const std::string& identity,
                                                                         const std::string& method,
                                                                         const std::string& request_id) {
  std::optional<int64_t> sequence;
  {
    absl::MutexLock lock(&index_mu_);
    sequence = requests_.Find(identity, method, request_id);
    if (!sequence.has_value()) return std::optional<RecordedCall>();
    if (const auto open = open_.find(*sequence); open != open_.end()) return std::optional<RecordedCall>(open->second);
  }
  absl::MutexLock lock(&database_mu_);
  return table_->ReadOutcome(*sequence);
}

}  // namespace penstock
