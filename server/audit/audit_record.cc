#include "server/audit/audit_record.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

constexpr size_t kMaxTextBytes = 256;

// Some readers end a line also at the two separators of Unicode.
std::string OneLine(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}});
}

}  // namespace

std::string AuditLine(const AuditRecord& record) {
  std::string line = "{\"time\": \"";
  absl::StrAppend(&line, absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", record.time, absl::UTCTimeZone()), "\"");
  const auto add = [&line](const char* name, std::string_view text) {
    absl::StrAppend(&line, ", \"", name, "\": \"", OneLine(JsonEscape(text.substr(0, kMaxTextBytes))), "\"");
  };
  add("identity", record.identity);
  add("role", record.role);
  add("peer", record.peer);
  add("method", record.method);
  add("pipeline", record.pipeline);
  add("target", record.target);
  add("request_id", record.request_id);
  add("code", record.code);
  add("reason", record.reason);
  absl::StrAppend(&line, ", \"seconds\": ", absl::ToDoubleSeconds(record.duration), "}\n");
  return line;
}

}  // namespace penstock
