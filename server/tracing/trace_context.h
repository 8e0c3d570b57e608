#pragma once

// Which trace a call belongs to, as callers and collectors write it.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

// The ids of one span of a trace, as its children refer to it. Neither id is all zeros.
struct TraceContext {
  TraceId trace_id = {};
  SpanId span_id = {};
  bool sampled = false;
  std::string state = {};  // tracestate: of vendors, handed on as it came

  bool operator==(const TraceContext&) const = default;
};

// Lower-case hexadecimal digits.
std::string ToHex(const TraceId& id);
std::string ToHex(const SpanId& id);

// Reads a `traceparent`: "00-<32 hex>-<16 hex>-<2 hex>", lower case. Of a later version than 00,
// the fields of 00 count if what follows them is set off by a dash. Nothing for version ff, all-zero ids and anything
// else.
// Source: W3C Recommendation "Trace Context", 23 November 2021, sections 3.2 and 4.2.
std::optional<TraceContext> ParseTraceparent(std::string_view text);
std::string FormatTraceparent(const TraceContext& context);

// Joins the values of `tracestate` to one list; empty if that breaks its grammar (section 3.3): at most 32 members
// KEY=VALUE, 512 bytes, no key twice.
std::string JoinTracestate(const std::vector<std::string_view>& values);

// What the metadata of a call says. A traceparent that can't be read, or stands there twice, counts as none. The
// metadata `grpc-trace-bin` is not read: gRPC's core keeps it from services.
std::optional<TraceContext> ReadTraceContext(const std::vector<std::string_view>& traceparent,
                                             const std::vector<std::string_view>& tracestate);

}  // namespace penstock
