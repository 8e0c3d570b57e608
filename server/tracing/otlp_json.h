#pragma once

// Spans as OpenTelemetry collectors read them: the JSON form of ExportTraceServiceRequest.

#include <span>
#include <string>

#include "server/tracing/span.h"

namespace penstock {

// One request with all spans, in one line. Ids are hexadecimal, 64-bit numbers are decimal strings, names are in lower
// camel case. Source: OpenTelemetry Protocol Specification 1.3, "JSON Protobuf Encoding".
//
// `resource`: what the spans are of; service.name first.
std::string ToOtlpJson(const SpanAttributes& resource, const std::string& version, std::span<const Span> spans);

}  // namespace penstock
