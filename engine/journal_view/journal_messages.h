#pragma once

// What stands in a journal, as messages.

#include <optional>

#include "absl/status/statusor.h"
#include "engine/journal/journal_inspection.h"
#include "penstock/v1/journal.pb.h"

namespace penstock {

// Fails:     JOURNAL_CORRUPT for an outcome that no release could have written.
absl::StatusOr<v1::JournalCall> MessageOf(const ListedCall& call);
// What a call has added to the history; nothing for one that was no optimizer step.
absl::StatusOr<std::optional<v1::HistoryStep>> StepOf(const ListedCall& call);
v1::VerifyJournalResponse MessageOf(const JournalCheck& check);

}  // namespace penstock
