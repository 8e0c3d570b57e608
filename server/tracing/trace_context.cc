#include "server/tracing/trace_context.h"

#include <algorithm>
#include <set>
#include <span>

namespace penstock {
namespace {

constexpr size_t kTraceparentBytes = 55;
constexpr size_t kMaxStateBytes = 512;
constexpr size_t kMaxStateMembers = 32;

// The value of one lower-case digit, or -1.
int DigitOf(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

bool ReadHex(std::string_view text, std::span<uint8_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = DigitOf(text[2 * i]);
    const int low = DigitOf(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

std::string WriteHex(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool AllZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// KEY of a member: a letter, then letters, digits and _ - * /; or with @ before a vendor's name, and then a digit may
// be first.
bool IsStateKey(std::string_view key) {
  const size_t at = key.find('@');
  const bool long_enough = !key.empty() && IsLowerOrDigit(key[0]);
  if (!long_enough || key.size() > 256) return false;
  if (at == std::string_view::npos) {
    if (key[0] < 'a') return false;
  } else {
    const std::string_view vendor = key.substr(at + 1);
    if (at > 241 || vendor.empty() || vendor.size() > 14 || vendor[0] < 'a' || vendor[0] > 'z') return false;
  }
  for (size_t i = 0; i < key.size(); ++i) {
    const char c = key[i];
    if (!IsLowerOrDigit(c) && c != '_' && c != '-' && c != '*' && c != '/' && i != at) return false;
  }
  return true;
}

bool IsStateValue(std::string_view value) {
  if (value.empty() || value.size() > 256 || value.back() == ' ') return false;
  return std::all_of(value.begin(), value.end(), [](char c) { return c >= 0x20 && c <= 0x7E && c != ',' && c != '='; });
}

}  // namespace

std::string ToHex(const TraceId& id) { return WriteHex(id); }
std::string ToHex(const SpanId& id) { return WriteHex(id); }

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  if (text.size() < kTraceparentBytes || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  uint8_t version = 0;
  uint8_t flags = 0;
  TraceContext context;
  if (!ReadHex(text, {&version, 1}) || !ReadHex(text.substr(3), context.trace_id) ||
      !ReadHex(text.substr(36), context.span_id) || !ReadHex(text.substr(53), {&flags, 1})) {
    return std::nullopt;
  }
  const bool longer = text.size() > kTraceparentBytes;
  if (version == 0xFF || (version == 0 && longer) || (longer && text[kTraceparentBytes] != '-')) return std::nullopt;
  if (AllZero(context.trace_id) || AllZero(context.span_id)) return std::nullopt;
  context.sampled = (flags & 1) != 0;
  return context;
}

std::string FormatTraceparent(const TraceContext& context) {
  return "00-" + ToHex(context.trace_id) + "-" + ToHex(context.span_id) + (context.sampled ? "-01" : "-00");
}

std::string JoinTracestate(const std::vector<std::string_view>& values) {
  std::string joined;
  std::set<std::string_view> keys;
  for (std::string_view value : values) {
    while (!value.empty()) {
      const std::string_view member = Trimmed(value.substr(0, value.find(',')));
      value.remove_prefix(
          std::min(value.size(), value.find(',') == std::string_view::npos ? value.size() : value.find(',') + 1));
      if (member.empty()) continue;
      const size_t equals = member.find('=');
      if (equals == std::string_view::npos || !IsStateKey(member.substr(0, equals)) ||
          !IsStateValue(member.substr(equals + 1)) || !keys.insert(member.substr(0, equals)).second) {
        return "";
      }
      if (!joined.empty()) joined += ',';
      joined += member;
    }
  }
  return keys.size() > kMaxStateMembers || joined.size() > kMaxStateBytes ? "" : joined;
}

std::optional<TraceContext> ReadTraceContext(const std::vector<std::string_view>& traceparent,
                                             const std::vector<std::string_view>& tracestate) {
  if (traceparent.size() != 1) return std::nullopt;
  std::optional<TraceContext> context = ParseTraceparent(traceparent.front());
  if (context.has_value()) context->state = JoinTracestate(tracestate);
  return context;
}

}  // namespace penstock
