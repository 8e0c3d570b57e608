#include "client/cli/setting_file.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/exit_code.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr char kProjectFile[] = ".penstock.toml";

bool IsName(absl::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isalnum(c) || c == '-'; });
}

// What stands in front of a comment.
absl::string_view WithoutComment(absl::string_view text) {
  return absl::StripAsciiWhitespace(text.substr(0, text.find('#')));
}

// The value that `text` begins with; `where` is FILE:LINE.
absl::StatusOr<std::string> ParseValue(absl::string_view text, const std::string& where) {
  if (text.empty() || (text[0] != '"' && text[0] != '\'')) {
    const absl::string_view plain = WithoutComment(text);
    const bool one_word = !plain.empty() && plain.find_first_of(" \t[]{}\"'=,") == absl::string_view::npos;
    if (!one_word) return UsageError(where, absl::StrCat("must be \"text\", a number, true or false, got ", plain));
    return std::string(plain);
  }
  const char quote = text[0];
  std::string value;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == quote) {
      if (WithoutComment(text.substr(i + 1)).empty()) return value;
      return UsageError(where, absl::StrCat("nothing may follow the value, got ", text.substr(i + 1)));
    }
    if (text[i] == '\\' && quote == '"') {
      if (++i == text.size() || (text[i] != '"' && text[i] != '\\')) {
        return UsageError(where, "only \\\" and \\\\ are understood after a backslash");
      }
    }
    value += text[i];
  }
  return UsageError(where, "the text has no end");
}

std::string Existing(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) ? path.string() : "";
}

}  // namespace

absl::StatusOr<std::vector<FileSetting>> ParseSettings(std::string_view text, const std::string& path) {
  std::vector<FileSetting> settings;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const std::string where = absl::StrCat(path, ":", ++number);
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    const absl::string_view name = absl::StripAsciiWhitespace(line.substr(0, equals));
    if (equals == absl::string_view::npos || !IsName(name)) {
      return UsageError(where, absl::StrCat("must be name = value, got ", line));
    }
    for (const FileSetting& other : settings) {
      if (other.name == name) return UsageError(where, absl::StrCat(name, " stands at ", other.origin, " already"));
    }
    PENSTOCK_ASSIGN_OR_RETURN(std::string value,
                              ParseValue(absl::StripLeadingAsciiWhitespace(line.substr(equals + 1)), where));
    settings.push_back({std::string(name), std::move(value), where});
  }
  return settings;
}

std::vector<std::string> SettingFiles(const std::string& folder,
                                      const std::function<std::string(const std::string&)>& variable) {
  std::vector<std::string> files;
  for (std::filesystem::path at = folder; !at.empty(); at = at.parent_path()) {
    if (const std::string file = Existing(at / kProjectFile); !file.empty()) {
      files.push_back(file);
      break;
    }
    if (at == at.parent_path()) break;
  }
  std::filesystem::path user = variable("XDG_CONFIG_HOME");
  if (user.empty() && !variable("HOME").empty()) user = std::filesystem::path(variable("HOME")) / ".config";
  if (!user.empty()) files.push_back(Existing(user / "penstock" / "config.toml"));
  files.push_back(Existing("/etc/penstock/config.toml"));
  files.erase(std::remove(files.begin(), files.end(), ""), files.end());
  return files;
}

}  // namespace penstock
