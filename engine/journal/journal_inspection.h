#pragma once

// What those who run a daemon want to know of a journal.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/journal/call_row.h"

namespace penstock {

// A call without its inputs.
//
// Units:     Unix nanoseconds; bytes.
struct ListedCall {
  int64_t sequence = 0;
  std::string identity = {};
  std::string method = {};
  std::string request_id = {};
  bool cut = false;  // its row is gone, and with it what follows
  int64_t forward_sequence = 0;
  int64_t accepted_unix_nanos = 0;
  int64_t inputs = 0;
  int64_t input_bytes = 0;
  JournalOutcome outcome = {};
};

// What a journal held when it was compared with its checksums.
struct JournalCheck {
  int64_t calls = 0;
  int64_t inputs = 0;
  int64_t input_bytes = 0;
  int64_t outcomes = 0;
  absl::Status damage = {};  // the first that was found: the counts go up to it
};

}  // namespace penstock
