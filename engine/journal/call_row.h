#pragma once

// One accepted call as the journal keeps it. Plain values and their checksums.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// How far a call has come. The numbers stand in files.
enum class CallStatus : int32_t { kAccepted = 0, kDone = 1, kFailed = 2, kCancelled = 3 };

const char* CallStatusName(CallStatus status);  // "ACCEPTED"

// An input as the caller gives it. `bytes` must stay while `owner` lives.
struct JournalInput {
  std::string header = {};  // what the bytes are: name, type, shape; any bytes, not looked at
  std::string_view bytes = {};
  std::shared_ptr<const void> owner = {};
  std::string digest = {};  // "sha256:…" of the bytes, if the caller has it; empty: computed where needed
};

// An input as it stands in a row: its bytes, or the digest of the file that has them.
struct StoredInput {
  std::string header = {};
  std::string digest = {};  // empty: the bytes are here
  std::string bytes = {};
  int64_t size = 0;  // of the bytes, here or there

  bool in_file() const { return !digest.empty(); }
};

// How a call went. Written after it was accepted, so with a checksum of its own.
struct JournalOutcome {
  CallStatus status = CallStatus::kAccepted;  // kAccepted: there is none yet
  int64_t draw_base = 0;                      // as it was fixed when the call started
  int64_t run_nanos = 0;                      // what the call took, to foresee how long a replay takes
  int64_t settled_unix_nanos = 0;
  std::string bytes = {};  // what a retry gets; not looked at
};

// A call of a pipeline's total order.
//
// Model:     The accepted part never changes once it is durable; its checksum goes over the checksum of the row before
//            it, so that a row can't be missing, changed or stand elsewhere. The outcome comes later and stands in a
//            row of its own (RecordedCall), whose checksum goes over that of the accepted part and the sequence, so
//            that it can't belong to another call.
// Units:     Unix nanoseconds. A forward_sequence of 0 means none.
struct CallRow {
  int64_t sequence = 0;
  std::string identity = {};
  std::string method = {};
  std::string request_id = {};  // empty: the pipeline's own call
  std::string payload_digest = {};
  std::string parameters = {};   // any bytes; not looked at
  int64_t micro_batches = 0;     // as they were fixed when the inputs were there
  int64_t forward_sequence = 0;  // of a Backward
  int64_t accepted_unix_nanos = 0;
  std::vector<StoredInput> inputs = {};
  uint32_t checksum = 0;  // of all of the above, over that of the row before

  JournalOutcome outcome = {};
};

// The checksum of the accepted part, after a row with the checksum `before`; of the first row ever, 0.
uint32_t AcceptedChecksum(const CallRow& row, uint32_t before);

// How a call went, and who made it: what a retry needs when the call's inputs are gone.
struct RecordedCall {
  int64_t sequence = 0;
  std::string identity = {};
  std::string method = {};
  std::string request_id = {};
  std::string payload_digest = {};
  uint32_t accepted_checksum = 0;  // of the row that it was
  JournalOutcome outcome = {};
};

// The checksum of an outcome, over that of the call that it belongs to.
uint32_t RecordedChecksum(const RecordedCall& call);

// Bytes that count for a bound on the journal: those that a replay must read.
int64_t ReplayBytes(const CallRow& row);

// The inputs of a row as one column.
std::string FormatInputs(const std::vector<StoredInput>& inputs);
// Fails: JOURNAL_CORRUPT.
absl::StatusOr<std::vector<StoredInput>> ParseInputs(std::string_view bytes);

// A checksum over fields of known lengths, so that no two lists of fields have the same bytes.
class FieldChecksum {
 public:
  // `purpose` tells one kind of row from another.
  FieldChecksum(std::string_view purpose, uint32_t before);

  FieldChecksum& Add(int64_t value);
  FieldChecksum& Add(std::string_view bytes);  // with its length
  uint32_t value() const { return value_; }

 private:
  uint32_t value_;
};

}  // namespace penstock
