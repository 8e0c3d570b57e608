// Opening and reading stand in journal_reading.cc, copies in journal_backup.cc.

#include "engine/journal/pipeline_journal.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "engine/journal/network_file_system.h"
#include "engine/wire/sha256.h"

namespace penstock {
namespace {

int64_t BytesOf(const std::vector<JournalInput>& inputs) {
  int64_t bytes = 0;
  for (const JournalInput& input : inputs) bytes += static_cast<int64_t>(input.bytes.size() + input.header.size());
  return bytes;
}

absl::Status ClosedJournal() { return JournalStopped("it is closed"); }

void Tell(const PipelineJournal::Done& done, const absl::Status& status) {
  Guarded("a callback of the journal", [&] { done(status); }).IgnoreError();  // it is in the log
}

RecordedCall OpenCallOf(const CallRow& row) {
  return {.sequence = row.sequence,
          .identity = row.identity,
          .method = row.method,
          .request_id = row.request_id,
          .payload_digest = row.payload_digest,
          .accepted_checksum = row.checksum};
}

}  // namespace

void PipelineJournal::Append(CallRow call, std::vector<JournalInput> inputs, Done durable) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_) {
      NewCall added{.row = std::move(call), .inputs = std::move(inputs), .done = std::move(durable)};
      if (added.row.sequence <= newest_sequence_) {
        added.refused = InvalidField("sequence", "must rise", std::to_string(added.row.sequence));
      }
      calls_.push_back(std::move(added));
      newest_sequence_ = std::max(newest_sequence_, calls_.back().row.sequence);
      return;
    }
  }
  Tell(durable, ClosedJournal());
}

void PipelineJournal::RecordOutcome(int64_t sequence, JournalOutcome outcome, Done durable) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_) {
      outcomes_.push_back({.sequence = sequence, .outcome = std::move(outcome), .done = std::move(durable)});
      return;
    }
  }
  Tell(durable, ClosedJournal());
}

void PipelineJournal::Cut(int64_t up_to, Done done) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_) {
      cuts_.push_back({.up_to = up_to, .done = std::move(done)});
      return;
    }
  }
  Tell(done, ClosedJournal());
}

absl::Status PipelineJournal::Close() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  if (thread_ != nullptr) thread_->Join();
  absl::MutexLock lock(&database_mu_);
  return database_ == nullptr ? absl::OkStatus() : database_->Close();
}

void PipelineJournal::Run() {
  const auto something = [this] {
    mu_.AssertReaderHeld();
    return closed_ || !calls_.empty() || !outcomes_.empty() || !cuts_.empty();
  };
  while (true) {
    Group group;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&something));
      if (calls_.empty() && outcomes_.empty() && cuts_.empty()) return;
      group = NextGroup();
    }
    CommitGroup(std::move(group));
    Guarded("the journal's log", [this] { TendLog(); }).IgnoreError();
  }
}

PipelineJournal::Group PipelineJournal::NextGroup() {
  Group group;
  group.outcomes.swap(outcomes_);
  int64_t bytes = 0;
  while (!calls_.empty()) {
    bytes += BytesOf(calls_.front().inputs);
    if (!group.calls.empty() && bytes > options_.max_group_bytes) break;
    group.calls.splice(group.calls.end(), calls_, calls_.begin());
  }
  if (!cuts_.empty()) group.cuts.splice(group.cuts.end(), cuts_, cuts_.begin());
  return group;
}

void PipelineJournal::CommitGroup(Group group) {
  absl::Status status = Guarded("the journal", [&] { return Prepare(group); });
  if (!status.ok()) RefuseCalls(group, status);
  if (group.calls.empty() && group.outcomes.empty() && group.cuts.empty()) return;
  status = Guarded("the journal", [&] { return Write(group); });
  if (!group.calls.empty() && ReasonOf(status) == "STORAGE_FULL") {
    // Outcomes and cuts are small, and there is headroom for them.
    RefuseCalls(group, status);
    status = Guarded("the journal", [&] { return Write(group); });
  }
  for (NewOutcome& outcome : group.outcomes) Tell(outcome.done, status.ok() ? outcome.refused : status);
  if (!status.ok()) {
    RefuseCalls(group, status);
  } else {
    for (NewCall& call : group.calls) Tell(call.done, call.refused);
  }
  if (group.cuts.empty()) return;
  const CutRequest& cut = group.cuts.front();
  if (status.ok()) status = cut.refused;
  if (!status.ok() || cut.ended) {
    Tell(cut.done, status);
    return;
  }
  absl::MutexLock lock(&mu_);
  cuts_.splice(cuts_.begin(), group.cuts);  // it goes on, after what has come meanwhile
}

void PipelineJournal::RefuseCalls(Group& group, const absl::Status& why) {
  std::list<NewCall> refused;
  refused.swap(group.calls);
  const int64_t durable = last_sequence();
  {
    absl::MutexLock lock(&mu_);
    if (calls_.empty()) newest_sequence_ = durable;
  }
  for (NewCall& call : refused) Tell(call.done, call.refused.ok() ? why : call.refused);
}

// Before the transaction: what takes long holds up no reader.
absl::Status PipelineJournal::Prepare(Group& group) {
  {
    absl::MutexLock lock(&database_mu_);
    PENSTOCK_RETURN_IF_ERROR(database_->stopped());
  }
  int64_t bytes = 0;
  for (const NewCall& call : group.calls) bytes += BytesOf(call.inputs);
  if (!group.calls.empty()) {
    const int64_t free = options_.free_bytes == nullptr ? FreeDiskBytes(folder_) : options_.free_bytes();
    if (free - options_.headroom_bytes < bytes) return JournalFull("append");
  }
  for (NewCall& call : group.calls) {
    if (!call.refused.ok()) continue;
    absl::Status stored = StoreInputs(call);
    if (stored.ok()) continue;
    if (absl::IsResourceExhausted(stored)) return stored;
    // What the disk holds after a failed write or sync is not known.
    absl::MutexLock lock(&database_mu_);
    database_->Stop(stored);
    return database_->stopped();
  }
  return absl::OkStatus();
}

absl::Status PipelineJournal::StoreInputs(NewCall& call) {
  call.row.inputs.clear();
  for (JournalInput& input : call.inputs) {
    StoredInput stored{.header = std::move(input.header), .size = static_cast<int64_t>(input.bytes.size())};
    if (stored.size <= options_.max_inline_bytes) {
      stored.bytes = std::string(input.bytes);
    } else {
      stored.digest = Sha256::IsDigest(input.digest) ? std::move(input.digest) : Sha256::Of(input.bytes);
      PENSTOCK_RETURN_IF_ERROR(blobs_->Store(stored.digest, input.bytes));
    }
    call.row.inputs.push_back(std::move(stored));
  }
  call.inputs.clear();  // their owners may let go
  return absl::OkStatus();
}

absl::Status PipelineJournal::Write(Group& group) {
  absl::MutexLock lock(&database_mu_);
  ChainEnds ends;
  {
    absl::MutexLock index_lock(&index_mu_);
    ends = ends_;
  }
  PENSTOCK_RETURN_IF_ERROR(database_->Begin());
  absl::Cleanup roll_back = [this] {
    database_mu_.AssertHeld();
    database_->RollBack();
    blobs_->RolledBack();
  };
  std::vector<RecordedCall> recorded;
  std::vector<RecordedCall> forgotten;
  PENSTOCK_RETURN_IF_ERROR(WriteCalls(group, &ends));
  PENSTOCK_RETURN_IF_ERROR(WriteOutcomes(group, &ends, &recorded));
  for (CutRequest& cut : group.cuts) PENSTOCK_RETURN_IF_ERROR(WriteCut(cut, recorded, &ends, &forgotten));
  ++ends.commits;
  PENSTOCK_RETURN_IF_ERROR(table_->WriteChain(ends));
  PENSTOCK_RETURN_IF_ERROR(database_->Commit());
  std::move(roll_back).Cancel();
  mark_->Write(ends.commits);
  const absl::Status noted = Guarded("the journal", [&] {
    NoteDurable(group, ends, recorded, forgotten);
    blobs_->Committed();
    blobs_->RemoveUnreferenced();
  });
  if (!noted.ok()) {  // the rows are there, but this process does not know all of them
    database_->Stop(noted);
    return database_->stopped();
  }
  return absl::OkStatus();
}

absl::Status PipelineJournal::WriteCalls(Group& group, ChainEnds* ends) {
  for (NewCall& call : group.calls) {
    if (!call.refused.ok()) continue;
    CallRow& row = call.row;
    row.checksum = AcceptedChecksum(row, ends->last_checksum);
    PENSTOCK_RETURN_IF_ERROR(table_->Insert(row));
    for (const StoredInput& input : row.inputs) {
      if (input.in_file()) PENSTOCK_RETURN_IF_ERROR(blobs_->AddReference(input.digest, input.size));
    }
    ends->last_sequence = row.sequence;
    ends->last_checksum = row.checksum;
  }
  return absl::OkStatus();
}

absl::Status PipelineJournal::WriteOutcomes(Group& group, ChainEnds* ends, std::vector<RecordedCall>* recorded) {
  std::map<int64_t, RecordedCall> open;
  {
    absl::MutexLock lock(&index_mu_);
    for (const NewOutcome& outcome : group.outcomes) {
      if (const auto found = open_.find(outcome.sequence); found != open_.end()) open.insert(*found);
    }
  }
  for (const NewCall& call : group.calls) {
    if (call.refused.ok()) open.emplace(call.row.sequence, OpenCallOf(call.row));
  }
  for (NewOutcome& outcome : group.outcomes) {
    outcome.refused = absl::OkStatus();
    auto found = open.extract(outcome.sequence);
    if (found.empty() || outcome.outcome.status == CallStatus::kAccepted) {
      outcome.refused = InvalidField("sequence", "has no call without an outcome", std::to_string(outcome.sequence));
      continue;
    }
    RecordedCall call = std::move(found.mapped());
    call.outcome = outcome.outcome;  // a copy: it may be written twice
    if (call.outcome.settled_unix_nanos == 0) call.outcome.settled_unix_nanos = absl::ToUnixNanos(clock_->WallNow());
    PENSTOCK_RETURN_IF_ERROR(table_->InsertOutcome(call));
    ++ends->outcomes;
    call.outcome.bytes.clear();  // nothing but its numbers is needed any more
    recorded->push_back(std::move(call));
  }
  return absl::OkStatus();
}

absl::Status PipelineJournal::WriteCut(CutRequest& cut, const std::vector<RecordedCall>& recorded, ChainEnds* ends,
                                       std::vector<RecordedCall>* forgotten) {
  cut.refused = absl::OkStatus();
  cut.ended = true;
  {
    absl::MutexLock lock(&index_mu_);
    std::set<int64_t> ended;
    for (const RecordedCall& call : recorded) ended.insert(call.sequence);
    for (const auto& [sequence, call] : open_) {
      if (sequence > cut.up_to) break;
      if (ended.contains(sequence)) continue;
      cut.refused = InvalidField("up_to", "lies behind a call without an outcome", std::to_string(sequence));
      return absl::OkStatus();
    }
    // Calls that this transaction accepts stay: nothing has run them.
    if (cut.up_to > ends_.last_sequence) {
      cut.refused = InvalidField("up_to", "lies behind the last call", std::to_string(cut.up_to));
      return absl::OkStatus();
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<CallTable::Cut> rows, table_->CutRows(cut.up_to, options_.rows_per_cut));
  for (const CallTable::Cut& row : rows) {
    for (const StoredInput& input : row.inputs) {
      if (input.in_file()) PENSTOCK_RETURN_IF_ERROR(blobs_->DropReference(input.digest));
    }
    ends->cut_sequence = row.sequence;
    ends->cut_checksum = row.checksum;
  }
  cut.ended = static_cast<int64_t>(rows.size()) < options_.rows_per_cut;
  if (!cut.ended) return absl::OkStatus();
  PENSTOCK_ASSIGN_OR_RETURN(*forgotten,
                            table_->ForgetOutcomes(options_.retention, *ends, absl::ToUnixNanos(clock_->WallNow())));
  ends->outcomes -= static_cast<int64_t>(forgotten->size());
  return absl::OkStatus();
}

void PipelineJournal::NoteDurable(const Group& group, const ChainEnds& ends, const std::vector<RecordedCall>& recorded,
                                  const std::vector<RecordedCall>& forgotten) {
  absl::MutexLock lock(&index_mu_);
  ends_ = ends;
  for (const NewCall& call : group.calls) {
    if (!call.refused.ok()) continue;
    const CallRow& row = call.row;
    const RowCost cost{.bytes = ReplayBytes(row)};
    costs_.emplace(row.sequence, cost);
    ++size_.rows;
    size_.bytes += cost.bytes;
    open_.emplace(row.sequence, OpenCallOf(row));
    requests_.Add(row.identity, row.method, row.request_id, row.sequence);
  }
  for (const RecordedCall& call : recorded) {
    open_.erase(call.sequence);
    costs_[call.sequence].run_nanos = call.outcome.run_nanos;
    size_.run_nanos += call.outcome.run_nanos;
  }
  while (!costs_.empty() && costs_.begin()->first <= ends.cut_sequence) {
    --size_.rows;
    size_.bytes -= costs_.begin()->second.bytes;
    size_.run_nanos -= costs_.begin()->second.run_nanos;
    costs_.erase(costs_.begin());
  }
  for (const RecordedCall& call : forgotten) {
    requests_.Remove(call.identity, call.method, call.request_id, call.sequence);
  }
}

void PipelineJournal::TendLog() {
  bool idle = false;
  {
    absl::MutexLock lock(&mu_);
    idle = calls_.empty() && outcomes_.empty() && cuts_.empty();
  }
  absl::MutexLock lock(&database_mu_);
  const int64_t most = idle ? std::min(options_.idle_log_pages, options_.max_log_pages) : options_.max_log_pages;
  if (database_->log_pages() <= most || !database_->stopped().ok()) return;
  if (const absl::Status written = database_->Checkpoint(); !written.ok()) {
    LogWarning("the journal's log can't be written into its database", {{"cause", std::string(written.message())}});
  }
}

}  // namespace penstock
