#include "engine/journal/call_row.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "engine/wire/checksum.h"
#include "engine/wire/sha256.h"

namespace penstock {
namespace {

// In files numbers have 8 bytes, the lowest first.
std::string NumberBytes(int64_t value) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i)
    bytes[static_cast<size_t>(i)] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  return bytes;
}

// Reads what FormatInputs() wrote; the first fault ends it.
class InputReader {
 public:
  explicit InputReader(std::string_view bytes) : bytes_(bytes) {}

  int64_t Number() {
    uint64_t value = 0;
    const std::string_view taken = Take(8);
    for (size_t i = taken.size(); i > 0; --i) value = value << 8 | static_cast<unsigned char>(taken[i - 1]);
    return static_cast<int64_t>(value);
  }
  std::string Text() {
    const int64_t size = Number();
    return std::string(Take(size < 0 ? SIZE_MAX : static_cast<size_t>(size)));
  }
  bool whole() const { return whole_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view Take(size_t size) {
    if (size > bytes_.size()) {
      whole_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
  bool whole_ = true;
};

// Of one call, files too: more than any disk has, and sums of it do not overflow.
constexpr int64_t kMostInputBytes = int64_t{1} << 60;

}  // namespace

const char* CallStatusName(CallStatus status) {
  switch (status) {
    case CallStatus::kAccepted:
      return "ACCEPTED";
    case CallStatus::kDone:
      return "DONE";
    case CallStatus::kFailed:
      return "FAILED";
    case CallStatus::kCancelled:
      return "CANCELLED";
  }
  return "UNKNOWN";
}

FieldChecksum::FieldChecksum(std::string_view purpose, uint32_t before) : value_(0) {
  Add(purpose);
  Add(static_cast<int64_t>(before));
}

FieldChecksum& FieldChecksum::Add(int64_t value) {
  value_ = ExtendCrc32c(value_, NumberBytes(value));
  return *this;
}

FieldChecksum& FieldChecksum::Add(std::string_view bytes) {
  Add(static_cast<int64_t>(bytes.size()));
  value_ = ExtendCrc32c(value_, bytes);
  return *this;
}

uint32_t AcceptedChecksum(const CallRow& row, uint32_t before) {
  FieldChecksum sum("call", before);
  sum.Add(row.sequence).Add(row.identity).Add(row.method).Add(row.request_id).Add(row.payload_digest);
  sum.Add(row.parameters).Add(row.micro_batches).Add(row.forward_sequence).Add(row.accepted_unix_nanos);
  sum.Add(static_cast<int64_t>(row.inputs.size()));
  for (const StoredInput& input : row.inputs) sum.Add(input.header).Add(input.digest).Add(input.bytes).Add(input.size);
  return sum.value();
}

uint32_t RecordedChecksum(const RecordedCall& call) {
  FieldChecksum sum("outcome", call.accepted_checksum);
  sum.Add(call.sequence).Add(call.identity).Add(call.method).Add(call.request_id).Add(call.payload_digest);
  const JournalOutcome& outcome = call.outcome;
  sum.Add(static_cast<int64_t>(outcome.status)).Add(outcome.draw_base).Add(outcome.run_nanos);
  return sum.Add(outcome.settled_unix_nanos).Add(outcome.bytes).value();
}

int64_t ReplayBytes(const CallRow& row) {
  size_t bytes = row.identity.size() + row.method.size() + row.request_id.size() + row.payload_digest.size() +
                 row.parameters.size();
  for (const StoredInput& input : row.inputs) bytes += input.header.size() + static_cast<size_t>(input.size);
  return static_cast<int64_t>(bytes);
}

std::string FormatInputs(const std::vector<StoredInput>& inputs) {
  std::string bytes = NumberBytes(static_cast<int64_t>(inputs.size()));
  const auto add = [&bytes](std::string_view text) {
    bytes += NumberBytes(static_cast<int64_t>(text.size()));
    bytes += text;
  };
  for (const StoredInput& input : inputs) {
    add(input.header);
    add(input.digest);
    add(input.bytes);
    bytes += NumberBytes(input.size);
  }
  return bytes;
}

absl::StatusOr<std::vector<StoredInput>> ParseInputs(std::string_view bytes) {
  InputReader reader(bytes);
  const int64_t count = reader.Number();
  std::vector<StoredInput> inputs;
  int64_t left = kMostInputBytes;
  for (int64_t i = 0; i < count && reader.whole(); ++i) {
    StoredInput input;
    input.header = reader.Text();
    input.digest = reader.Text();
    input.bytes = reader.Text();
    input.size = reader.Number();
    const bool right = input.in_file() ? Sha256::IsDigest(input.digest) && input.bytes.empty() && input.size >= 0
                                       : input.size == static_cast<int64_t>(input.bytes.size());
    if (!reader.whole()) break;
    if (!right || input.size > left) {
      return JournalCorrupt(absl::StrCat("input ", i, " of a call is not what was written"));
    }
    left -= input.size;
    inputs.push_back(std::move(input));
  }
  if (!reader.whole() || !reader.at_end() || count < 0)
    return JournalCorrupt("the inputs of a call end too early or late");
  return inputs;
}

}  // namespace penstock
