#pragma once

// One span of a trace, ended: what a collector gets.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/tracing/trace_context.h"

namespace penstock {

using SpanValue = std::variant<std::string, int64_t, bool>;
using SpanAttributes = std::vector<std::pair<std::string, SpanValue>>;

struct Span {
  enum class Kind { kInternal, kServer };

  TraceContext context = {};          // its own
  std::optional<SpanId> parent = {};  // of the same trace
  std::string name = {};              // "Recv.penstock.v1.WorkService.TrainStep"
  Kind kind = Kind::kInternal;
  int64_t begin_unix_nanos = 0;
  int64_t end_unix_nanos = 0;
  SpanAttributes attributes = {};
  bool failed = false;
  std::string message = {};  // of a failed one
};

}  // namespace penstock
