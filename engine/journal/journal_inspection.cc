// Reading a journal for those who run the daemon, while its calls go on.

#include "engine/journal/journal_inspection.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "engine/journal/pipeline_journal.h"

namespace penstock {
namespace {

ListedCall FromOutcome(RecordedCall recorded) {
  return {.sequence = recorded.sequence,
          .identity = std::move(recorded.identity),
          .method = std::move(recorded.method),
          .request_id = std::move(recorded.request_id),
          .cut = true,
          .outcome = std::move(recorded.outcome)};
}

}  // namespace

absl::StatusOr<std::vector<ListedCall>> PipelineJournal::List(int64_t after, bool newest_first, int64_t limit) {
  if (after == 0 && newest_first) after = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> sequences;
  {
    absl::MutexLock lock(&database_mu_);
    PENSTOCK_ASSIGN_OR_RETURN(sequences, table_->OutcomeSequences(after, newest_first, limit));
    absl::MutexLock index_lock(&index_mu_);
    for (const auto& [sequence, call] : open_) {
      if (newest_first ? sequence < after : sequence > after) sequences.push_back(sequence);
    }
  }
  std::sort(sequences.begin(), sequences.end());
  if (newest_first) std::reverse(sequences.begin(), sequences.end());
  sequences.erase(std::unique(sequences.begin(), sequences.end()), sequences.end());
  if (std::ssize(sequences) > limit) sequences.resize(limit);
  std::vector<ListedCall> calls;
  for (const int64_t sequence : sequences) {
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<ListedCall> call, ListOne(sequence));
    if (call.has_value()) calls.push_back(*std::move(call));  // else it was forgotten meanwhile
  }
  return calls;
}

absl::StatusOr<std::optional<ListedCall>> PipelineJournal::ListOne(int64_t sequence) {
  absl::MutexLock lock(&database_mu_);
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<CallRow> row, table_->ReadRow(sequence, std::nullopt));
  if (row.has_value() && row->sequence == sequence) {
    ListedCall call{.sequence = sequence,
                    .identity = std::move(row->identity),
                    .method = std::move(row->method),
                    .request_id = std::move(row->request_id),
                    .forward_sequence = row->forward_sequence,
                    .accepted_unix_nanos = row->accepted_unix_nanos,
                    .inputs = std::ssize(row->inputs),
                    .outcome = std::move(row->outcome)};
    for (const StoredInput& input : row->inputs) call.input_bytes += input.size;
    return std::optional<ListedCall>(std::move(call));
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::optional<RecordedCall> recorded, table_->ReadOutcome(sequence));
  if (!recorded.has_value()) return std::optional<ListedCall>();
  return std::optional<ListedCall>(FromOutcome(*std::move(recorded)));
}

absl::StatusOr<std::vector<ListedCall>> PipelineJournal::Outcomes(int64_t after, int64_t limit) {
  absl::MutexLock lock(&database_mu_);
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int64_t> sequences, table_->OutcomeSequences(after, false, limit));
  std::vector<ListedCall> calls;
  for (const int64_t sequence : sequences) {
    PENSTOCK_ASSIGN_OR_RETURN(std::optional<RecordedCall> recorded, table_->ReadOutcome(sequence));
    if (recorded.has_value()) calls.push_back(FromOutcome(*std::move(recorded)));
  }
  return calls;
}

JournalCheck PipelineJournal::Check(const std::function<bool()>& wanted) {
  JournalCheck check;
  {
    absl::MutexLock lock(&database_mu_);
    database_->ForgetPages();
    blobs_->Hold();
  }
  const absl::Cleanup release = [this] {
    absl::MutexLock lock(&database_mu_);
    blobs_->Release();
  };
  check.damage = CheckCalls(wanted, &check);
  if (check.damage.ok()) check.damage = CheckOutcomes(&check);
  return check;
}

// Between two calls others commit; a cut moves the beginning of the chain.
absl::Status PipelineJournal::CheckCalls(const std::function<bool()>& wanted, JournalCheck* check) {
  int64_t sequence = 0;
  uint32_t checksum = 0;
  while (true) {
    if (wanted && !wanted()) return absl::CancelledError("nobody wants it any more");
    std::optional<CallRow> row;
    {
      absl::MutexLock lock(&database_mu_);
      PENSTOCK_ASSIGN_OR_RETURN(const ChainEnds ends, table_->ReadChain());
      if (ends.cut_sequence > sequence) {
        sequence = ends.cut_sequence;
        checksum = ends.cut_checksum;
      }
      PENSTOCK_ASSIGN_OR_RETURN(row, table_->ReadRow(sequence + 1, checksum));
      if (!row.has_value() && (sequence != ends.last_sequence || checksum != ends.last_checksum)) {
        return JournalCorrupt(absl::StrCat("its last call is ", sequence, ", and must be ", ends.last_sequence));
      }
    }
    if (!row.has_value()) return absl::OkStatus();
    sequence = row->sequence;
    checksum = row->checksum;
    ++check->calls;
    for (const StoredInput& input : row->inputs) {
      if (const absl::Status read = ReadInput(input).status(); !read.ok()) {
        return WithPrefix(read, absl::StrCat("an input of call ", sequence, ": "));
      }
      ++check->inputs;
      check->input_bytes += input.size;
    }
  }
}

absl::Status PipelineJournal::CheckOutcomes(JournalCheck* check) {
  absl::MutexLock lock(&database_mu_);
  PENSTOCK_ASSIGN_OR_RETURN(const ChainEnds ends, table_->ReadChain());
  PENSTOCK_RETURN_IF_ERROR(table_->VisitOutcomes([check](const RecordedCall&) {
    ++check->outcomes;
    return absl::OkStatus();
  }));
  if (check->outcomes == ends.outcomes) return absl::OkStatus();
  return JournalCorrupt(absl::StrCat("it has ", check->outcomes, " outcomes, and must have ", ends.outcomes));
}

}  // namespace penstock
