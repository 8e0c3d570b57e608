#include "engine/base/log.h"

#include <array>
#include <atomic>
#include <memory>

#include "absl/strings/str_format.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace penstock {
namespace {

std::atomic<LogFormat> log_format = LogFormat::kText;
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

}  // namespace

void ConfigureLog(LogLevel level, LogFormat format) {
  Logger().set_level(ToSpdlog(level));
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

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  line_counts[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
  if (!Logger().should_log(ToSpdlog(level))) return;
  std::string line;
  if (log_format == LogFormat::kJson) {
    constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    line = absl::StrFormat("{\"time\":%.6f,\"level\":\"%s\",\"message\":\"%s\"",
                           std::chrono::duration<double>(now).count(), std::string(kNames[static_cast<size_t>(level)]),
                           JsonEscape(message));
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

int64_t LoggedLines(LogLevel level) { return line_counts[static_cast<size_t>(level)].load(); }

}  // namespace penstock
