#pragma once

// CLI11, with whole numbers as they are given: by itself it takes the nearest of 64 bits for one that does not fit, and
// 2^64 - 1 for -1 where there is no sign. Files of this room include it instead of CLI11's own header.

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace CLI::detail {

template <>
inline bool integral_conversion<std::int64_t>(const std::string& input, std::int64_t& output) noexcept {
  char* end = nullptr;
  errno = 0;
  output = std::strtoll(input.c_str(), &end, 0);
  return errno == 0 && !input.empty() && end == input.c_str() + input.size();
}

template <>
inline bool integral_conversion<std::uint64_t>(const std::string& input, std::uint64_t& output) noexcept {
  char* end = nullptr;
  errno = 0;
  output = std::strtoull(input.c_str(), &end, 0);
  return errno == 0 && !input.empty() && end == input.c_str() + input.size() && input.find('-') == std::string::npos;
}

}  // namespace CLI::detail
