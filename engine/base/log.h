#pragma once

// Structured log lines: a fixed sentence plus named values, as text or as one JSON object per line, on stderr.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace penstock {

using LogField = std::pair<std::string_view, std::string>;

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// Sets level and format; call it once, before threads start. The defaults are kInfo and kText.
void ConfigureLog(LogLevel level, LogFormat format);

// Writes one line. In values control characters and invalid UTF-8 are escaped, and what exceeds 8 KiB is cut off.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

inline void LogInfo(std::string_view m, std::initializer_list<LogField> f = {}) { Log(LogLevel::kInfo, m, f); }
inline void LogWarning(std::string_view m, std::initializer_list<LogField> f = {}) { Log(LogLevel::kWarning, m, f); }
inline void LogError(std::string_view m, std::initializer_list<LogField> f = {}) { Log(LogLevel::kError, m, f); }

// How many lines of a level were written since the start.
int64_t LoggedLines(LogLevel level);

// The text between double quotes of a JSON string: quotes, control characters and invalid UTF-8 escaped.
std::string JsonEscape(std::string_view text);

}  // namespace penstock
