#pragma once

// What commands print of journals.

#include <string>
#include <vector>

#include "client/cli/output.h"
#include "penstock/v1/journal.pb.h"

namespace penstock {

Document JournalCallDocument(const std::vector<v1::JournalCall>& calls);

// A journal that was verified.
struct VerifiedJournal {
  std::string pipeline;
  v1::VerifyJournalResponse found;
};
Document VerifiedDocument(const std::vector<VerifiedJournal>& journals);

Document BackupDocument(const v1::BackUpJournalResponse& copy);

Document HistoryDocument(const std::vector<v1::HistoryStep>& steps);
// With a line of names first; what a step has not is empty.
std::string HistoryCsv(const std::vector<v1::HistoryStep>& steps);

}  // namespace penstock
