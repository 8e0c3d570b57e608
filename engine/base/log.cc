#include "engine/base/log.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/log_level.h"
#include "engine/base/log_scope.h"
#include "engine/base/log_sink.h"
#include "engine/base/log_writer.h"
#include "engine/base/utf8.h"

namespace penstock {
namespace {

std::atomic<LogFormat> log_format = LogFormat::kText;
std::atomic<LogLevel> log_level = LogLevel::kInfo;
std::array<std::atomic<int64_t>, 4> line_counts;

// A client's value, or a library's text, must not fill the log.
constexpr size_t kMaxValueBytes = 8 << 10;
constexpr absl::Duration kCrashPatience = absl::Seconds(1);

std::atomic<LogWriter*> writer = nullptr;  // null: who logs writes

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

// A value as it may be logged: the beginning of what is too long, cut between characters.
std::string Shown(std::string_view value) {
  if (value.size() <= kMaxValueBytes) return JsonEscape(value);
  size_t kept = kMaxValueBytes;
  while (kept > 0 && (static_cast<unsigned char>(value[kept]) & 0xC0) == 0x80) --kept;
  return absl::StrCat(JsonEscape(value.substr(0, kept)), "... (", value.size(), " bytes)");
}

// A whole line, with its end.
std::string Line(LogLevel level, std::string_view message, const std::vector<LogField>& fields) {
  const absl::Time now = absl::Now();
  std::string line;
  if (log_format == LogFormat::kJson) {
    line = absl::StrFormat("{\"time\":%.6f,\"level\":\"%s\",\"message\":\"%s\"",
                           absl::ToDoubleSeconds(now - absl::UnixEpoch()), std::string(NameOf(level)), Shown(message));
    for (const auto& [name, value] : fields) {
      absl::StrAppendFormat(&line, ",\"%s\":\"%s\"", std::string(name), Shown(value));
    }
    line += '}';
  } else {
    line = absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3S%Ez", now, absl::LocalTimeZone()), " ",
                        std::string(1, absl::ascii_toupper(static_cast<unsigned char>(NameOf(level)[0]))), " ",
                        Shown(message));
    for (const auto& [name, value] : fields) {
      absl::StrAppendFormat(&line, " %s=\"%s\"", std::string(name), Shown(value));
    }
  }
  return line + '\n';
}

void WriteNow(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) line.remove_prefix(static_cast<size_t>(written));
  }
}

// Signals that end the process, and what they did before: a core file, a sanitizer's report.
constexpr std::array<int, 5> kCrashSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
std::array<struct sigaction, kCrashSignals.size()> crash_actions;

// Waits for the lines that were logged before, then lets the signal do what it did.
void OnCrash(int signal, siginfo_t* info, void*) {
  if (const LogWriter* const to = writer) to->FlushInSignalHandler(kCrashPatience);
  for (size_t i = 0; i < kCrashSignals.size(); ++i) {
    if (kCrashSignals[i] == signal) sigaction(signal, &crash_actions[i], nullptr);
  }
  if (info->si_code <= 0) raise(signal);  // it was sent; a fault happens again by itself
}

void FlushOnCrash() {
  struct sigaction action = {};
  action.sa_sigaction = &OnCrash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (size_t i = 0; i < kCrashSignals.size(); ++i) sigaction(kCrashSignals[i], &action, &crash_actions[i]);
}

}  // namespace

void ConfigureLog(LogLevel level, LogFormat format) {
  log_level = level;
  log_format = format;
}

std::string JsonEscape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const unsigned char c = static_cast<unsigned char>(text[0]);
    size_t length = PrintableLength(text);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += text[0];
    } else if (length == 0) {
      // A control character of Latin 1 is one character of two bytes; of what is no UTF-8, each byte is told.
      const unsigned char next = text.size() > 1 ? static_cast<unsigned char>(text[1]) : 0;
      const bool latin = c == 0xC2 && next >= 0x80 && next < 0xA0;
      absl::StrAppendFormat(&out, "\\u%04x", latin ? next : c);
      length = latin ? 2 : 1;
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  return out;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> given) {
  line_counts[static_cast<size_t>(level)].fetch_add(1, std::memory_order_relaxed);
  if (level < log_level.load()) return;
  LogWriter* const to = writer;
  if (to != nullptr && !to->Admit(message)) return;
  std::string line = Line(level, message, WithScopes(given));
  to != nullptr ? to->Add(std::move(line)) : WriteNow(line);
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

LogLevel SetLogLevel(LogLevel level) {
  static auto* mu = new absl::Mutex;  // one change at a time
  absl::MutexLock lock(mu);
  const LogLevel before = log_level.load();
  log_level = std::min(before, level);
  // As a warning or an error where no lesser line would be written.
  Log(std::max(LogLevel::kInfo, std::min(before, level)), "log level changed",
      {{"from", std::string(NameOf(before))}, {"to", std::string(NameOf(level))}});
  log_level = level;
  return before;
}

int64_t LoggedLines(LogLevel level) { return line_counts[static_cast<size_t>(level)].load(); }

void StartLogWriter() {
  LogWriter::Options options;
  options.notice = [](LogDrop cause, std::string_view message, int64_t lines) {
    std::vector<LogField> fields = {{"cause", std::string(kLogDropNames[static_cast<size_t>(cause)])},
                                    {"lines", std::to_string(lines)}};
    if (!message.empty()) fields.emplace_back("of", message);
    return Line(LogLevel::kWarning, "log lines dropped", fields);
  };
  writer = new LogWriter(std::move(options));
  FlushOnCrash();
}

bool FlushLog(absl::Duration patience) {
  LogWriter* const to = writer;
  return to == nullptr || to->Flush(patience);
}

int64_t DroppedLogLines(LogDrop cause) {
  LogWriter* const from = writer;
  return from == nullptr ? 0 : from->dropped(cause);
}

}  // namespace penstock
