#pragma once

// Which log lines are written, while the program runs. Apart from log.h, because few need it.

#include <array>
#include <optional>
#include <string_view>

#include "engine/base/log.h"

namespace penstock {

inline constexpr std::array<LogLevel, 4> kLogLevels = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning,
                                                       LogLevel::kError};

// "debug", "info", "warning", "error"; "text", "json".
std::string_view NameOf(LogLevel level);
std::string_view NameOf(LogFormat format);
std::optional<LogLevel> LogLevelFromName(std::string_view name);

// What ConfigureLog() has set, or SetLogLevel() since.
LogLevel CurrentLogLevel();
LogFormat CurrentLogFormat();

// From now on, for all threads; returns what was before. The change itself is logged, whichever of the two levels is the
// quieter one.
LogLevel SetLogLevel(LogLevel level);

}  // namespace penstock
