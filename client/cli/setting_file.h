#pragma once

// Files with settings of the command line: what they may hold, and where they lie.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// One line of such a file.
struct FileSetting {
  std::string name;
  std::string value;
  std::string origin;  // "FILE:LINE"
};

// Reads `name = value` lines: TOML without tables, lists and text over several lines. A value is "text", 'text', a
// number, true or false; # begins a comment. Names are those of the long options.
//
// Fails:     INVALID_ARGUMENT / USAGE with file and line for what is no such line, and for a name that stands twice.
absl::StatusOr<std::vector<FileSetting>> ParseSettings(std::string_view text, const std::string& path);

// Where files are looked for, the one that wins first: the project's (.penstock.toml in `folder`, or the nearest one
// above it), the user's ($XDG_CONFIG_HOME/penstock/config.toml or ~/.config/penstock/config.toml), the system's
// (/etc/penstock/config.toml). `variable` returns a variable of the environment, or "".
std::vector<std::string> SettingFiles(const std::string& folder,
                                      const std::function<std::string(const std::string&)>& variable);

}  // namespace penstock
