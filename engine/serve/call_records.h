#pragma once

// The forms in which calls and their answers stand in a journal. The edge gives them: they are those of the wire.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/handles/handle_store.h"
#include "engine/journal/call_row.h"
#include "engine/serve/call.h"
#include "engine/serve/calls.h"

namespace penstock {

// What a retry of a call gets when its handles are gone: all of the answer but tensors and graphs.
struct CallAnswer {
  absl::Status error = {};
  bool has_outputs = false;  // the call had a handle for them
  bool has_graph = false;
  std::optional<CallOutcome> outcome = {};
  std::optional<StateAnswer> state = {};  // of its checkpoint, the identifier
};

// An input of a row with its bytes.
struct RecordedInput {
  std::string header;
  std::string bytes;
};

// A call of a row, to be made again.
struct RepeatedCall {
  CallContext context = {};   // without what the row's columns say
  Request request = {};       // with its values; of a Backward without the graph, of a write without the handles
  NamedTensors written = {};  // of a write
};

// Writes calls and answers, and reads them again.
//
// Threads:   any.
// Fails:     Write: HOST_MEMORY. Read: JOURNAL_CORRUPT for what no release could have written.
class CallRecords {
 public:
  virtual ~CallRecords() = default;

  // All of a call but its values.
  virtual std::string WriteCall(const Call& call) const = 0;
  // Its values, in the order of CallInputs::Take(), or the tensors of a write.
  virtual absl::StatusOr<std::vector<JournalInput>> WriteInputs(const Call& call, const NamedValues& values) const = 0;
  virtual absl::StatusOr<RepeatedCall> ReadCall(const std::string& method, std::string_view parameters,
                                                const std::vector<RecordedInput>& inputs) const = 0;

  virtual std::string WriteAnswer(const CallAnswer& answer) const = 0;
  virtual absl::StatusOr<CallAnswer> ReadAnswer(std::string_view bytes) const = 0;
};

}  // namespace penstock
