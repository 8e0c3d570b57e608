#pragma once

#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"

namespace penstock {

// The words of a line up to a comment: blanks stand between them, a # at the start of a word begins the comment.
inline std::vector<std::string_view> LineWords(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    while (!line.empty() && absl::ascii_isspace(static_cast<unsigned char>(line.front()))) line.remove_prefix(1);
    if (line.empty() || line.front() == '#') return words;
    size_t end = 0;
    while (end < line.size() && !absl::ascii_isspace(static_cast<unsigned char>(line[end]))) ++end;
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

// Calls `take(words, number)` for each line that has words, until one fails; lines are counted from 1.
template <typename Take>
auto ForEachLine(std::string_view text, Take&& take) -> decltype(take(std::vector<std::string_view>(), 1)) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::vector<std::string_view> words = LineWords(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (words.empty()) continue;
    if (auto taken = take(words, number); !taken.ok()) return taken;
  }
  return {};
}

}  // namespace penstock
