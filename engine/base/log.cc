#include "engine/base/log.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/log_level.h"
#include "engine/base/log_scope.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace penstock {
namespace {

std::atomic<LogFormat> log_format = LogFormat::kText;
std::atomic<LogLevel> log_level = LogLevel::kInfo;
std::array<std::atomic<int64_t>, 4> line_counts;

spdlog::logger& Logger() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("penstock", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%L%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The length of the valid UTF-8 sequence at the start of `text`, or 0.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  size_t length = lead < 0x80                   ? 1
                  : lead >= 0xC2 && lead < 0xE0 ? 2
                  : lead >= 0xE0 && lead < 0xF0 ? 3
                  : lead >= 0xF0 && lead < 0xF5 ? 4
                                                : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (lead == 0xED && byte(1) > 0x9F) return 0;  // surrogate
  if (lead == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (lead == 0xF4 && byte(1) > 0x8F) return 0;  // above U+10FFFF
  return length;
}

// The fields of a line with those of the scopes around it.
std::vector<LogField> WithScopes(std::initializer_list<LogField> fields) {
  std::vector<LogField> all(fields);
  for (const LogScope* scope = LogScope::Innermost(); scope != nullptr; scope = scope->outer()) {
    for (const auto& outer : scope->fields()) {
      const bool named =
          std::any_of(all.begin(), all.end(), [&](const LogField& field) { return field.first == outer.first; });
      if (!named) all.emplace_back(outer.first, outer.second);
    }
  }
  return all;
}

}  // namespace

void ConfigureLog(LogLevel level, LogFormat format) {
  Logger().set_level(ToSpdlog(level));
  log_level = level;
  log_format = format;
  if (format == LogFormat::kJson) Logger().set_pattern("%v");
}

std::string JsonEscape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const unsigned char c = static_cast<unsigned char>(text[0]);
    size_t length = Utf8Length(text);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += text[0];
    } else if (c < 0x20 || c == 0x7F || length == 0) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
      length = 1;
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  return out;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> given) {
  line_counts[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
  if (!Logger().should_log(ToSpdlog(level))) return;
  const std::vector<LogField> fields = WithScopes(given);
  std::string line;
  if (log_format == LogFormat::kJson) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    line = absl::StrFormat("{\"time\":%.6f,\"level\":\"%s\",\"message\":\"%s\"",
                           std::chrono::duration<double>(now).count(), std::string(NameOf(level)), JsonEscape(message));
    for (const auto& [name, value] : fields) {
      absl::StrAppendFormat(&line, ",\"%s\":\"%s\"", std::string(name), JsonEscape(value));
    }
    line += '}';
  } else {
    line = JsonEscape(message);
    for (const auto& [name, value] : fields) {
      absl::StrAppendFormat(&line, " %s=\"%s\"", std::string(name), JsonEscape(value));
    }
  }
  Logger().log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

std::string_view NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "info";
}

std::string_view NameOf(LogFormat format) { return format == LogFormat::kJson ? "json" : "text"; }

std::optional<LogLevel> LogLevelFromName(std::string_view name) {
  for (const LogLevel level : kLogLevels) {
    if (NameOf(level) == name) return level;
  }
  return std::nullopt;
}

LogLevel CurrentLogLevel() { return log_level; }
LogFormat CurrentLogFormat() { return log_format; }

void SetLogLevel(LogLevel level) {
  static auto* mu = new absl::Mutex;  // one change at a time
  absl::MutexLock lock(mu);
  const LogLevel before = log_level.exchange(level);
  Logger().set_level(ToSpdlog(std::min(before, level)));
  // As a warning or an error where no lesser line would be written.
  Log(std::max(LogLevel::kInfo, std::min(before, level)), "log level changed",
      {{"from", std::string(NameOf(before))}, {"to", std::string(NameOf(level))}});
  Logger().set_level(ToSpdlog(level));
}

int64_t LoggedLines(LogLevel level) { return line_counts[static_cast<size_t>(level)].load(); }

}  // namespace penstock
