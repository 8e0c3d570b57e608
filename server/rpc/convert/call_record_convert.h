#pragma once

// Calls as the rows of a journal: messages of penstock.journal.v1, with the requests of penstock.v1 in them.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/serve/call_records.h"

namespace penstock {

class CheckpointStore;

// The forms of penstock.journal.v1. `checkpoints`: where a copy is looked for that is made again; outlives it.
class WireCallRecords : public CallRecords {
 public:
  explicit WireCallRecords(const CheckpointStore* checkpoints) : checkpoints_(checkpoints) {}

  std::string WriteCall(const Call& call) const override;
  absl::StatusOr<std::vector<JournalInput>> WriteInputs(const Call& call, const NamedValues& values) const override;
  absl::StatusOr<RepeatedCall> ReadCall(const std::string& method, std::string_view parameters,
                                        const std::vector<RecordedInput>& inputs) const override;
  std::string WriteAnswer(const CallAnswer& answer) const override;
  absl::StatusOr<CallAnswer> ReadAnswer(std::string_view bytes) const override;

 private:
  absl::StatusOr<Request> ReadRequest(const std::string& method, const std::string& bytes) const;

  const CheckpointStore* const checkpoints_;
};

}  // namespace penstock
