#include "server/tracing/otlp_json.h"

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

constexpr int kKindInternal = 1;
constexpr int kKindServer = 2;
constexpr int kStatusError = 2;

void AddValue(const SpanValue& value, std::string* out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    absl::StrAppend(out, "{\"stringValue\":\"", JsonEscape(*text), "\"}");
  } else if (const auto* number = std::get_if<int64_t>(&value)) {
    absl::StrAppend(out, "{\"intValue\":\"", *number, "\"}");
  } else {
    absl::StrAppend(out, "{\"boolValue\":", std::get<bool>(value) ? "true" : "false", "}");
  }
}

void AddAttributes(const SpanAttributes& attributes, std::string* out) {
  absl::StrAppend(out, "\"attributes\":[");
  const char* comma = "";
  for (const auto& [key, value] : attributes) {
    absl::StrAppend(out, comma, "{\"key\":\"", JsonEscape(key), "\",\"value\":");
    AddValue(value, out);
    out->append("}");
    comma = ",";
  }
  out->append("]");
}

void AddSpan(const Span& span, std::string* out) {
  absl::StrAppend(out, "{\"traceId\":\"", ToHex(span.context.trace_id), "\",\"spanId\":\"", ToHex(span.context.span_id),
                  "\"");
  if (!span.context.state.empty()) {
    absl::StrAppend(out, ",\"traceState\":\"", JsonEscape(span.context.state), "\"");
  }
  if (span.parent.has_value()) absl::StrAppend(out, ",\"parentSpanId\":\"", ToHex(*span.parent), "\"");
  absl::StrAppend(out, ",\"flags\":", span.context.sampled ? 1 : 0, ",\"name\":\"", JsonEscape(span.name),
                  "\",\"kind\":", span.kind == Span::Kind::kServer ? kKindServer : kKindInternal,
                  ",\"startTimeUnixNano\":\"", span.begin_unix_nanos, "\",\"endTimeUnixNano\":\"", span.end_unix_nanos,
                  "\",");
  AddAttributes(span.attributes, out);
  absl::StrAppend(out, ",\"status\":{");
  if (span.failed) absl::StrAppend(out, "\"message\":\"", JsonEscape(span.message), "\",\"code\":", kStatusError);
  out->append("}}");
}

}  // namespace

std::string ToOtlpJson(const SpanAttributes& resource, const std::string& version, std::span<const Span> spans) {
  std::string out = "{\"resourceSpans\":[{\"resource\":{";
  AddAttributes(resource, &out);
  absl::StrAppend(&out, "},\"scopeSpans\":[{\"scope\":{\"name\":\"penstock\",\"version\":\"", JsonEscape(version),
                  "\"},\"spans\":[");
  for (size_t i = 0; i < spans.size(); ++i) {
    if (i > 0) out += ',';
    AddSpan(spans[i], &out);
  }
  return out + "]}]}]}";
}

}  // namespace penstock
