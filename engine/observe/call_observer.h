#pragma once

// What the edge wants to hear of an accepted call, which may end long after the edge has answered.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace penstock {

// One accepted call, as it went.
struct CallEnd {
  std::string_view pipeline;
  std::string_view method;     // "TrainStep"
  std::string_view mode = {};  // as penstock_batches_total has it; empty for what is no mini-batch
  int64_t accepted_nanos = 0;  // monotonic
  int64_t started_nanos = 0;   // 0: it ended before it ran
  int64_t ended_nanos = 0;
  int64_t step = 0;  // as trace records have it; 0: unknown
  absl::Status status = {};
};

// Hears once how a call went.
//
// Threads:   OnEnded() on any thread, under no lock of the caller; it must not block.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void OnEnded(const CallEnd& end) = 0;
  // Under which log lines and errors of the call are found: trace_id and span_id.
  virtual std::vector<std::pair<std::string, std::string>> Ids() const = 0;
};

}  // namespace penstock
