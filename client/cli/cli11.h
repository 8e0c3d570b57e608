#pragma once

// CLI11, with whole numbers as they are given: by itself it takes the nearest of 64 bits for one that does not fit,
// 2^64 - 1 for -1 where there is no sign, and 8 for 010. Files of this room include it instead of CLI11's own header.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"

namespace penstock {

// Whether all of the text is a whole number that `*number` holds: decimal, or hexadecimal behind 0x.
template <typename Number>
bool ReadWholeNumber(const std::string& text, Number* number) {
  const bool hexadecimal = text.find_first_of("xX") != std::string::npos;
  return hexadecimal ? absl::SimpleHexAtoi(text, number) : absl::SimpleAtoi(text, number);
}

}  // namespace penstock

namespace CLI::detail {

template <>
inline bool integral_conversion<int>(const std::string& input, int& output) noexcept {
  return penstock::ReadWholeNumber(input, &output);
}

template <>
inline bool integral_conversion<std::int64_t>(const std::string& input, std::int64_t& output) noexcept {
  return penstock::ReadWholeNumber(input, &output);
}

template <>
inline bool integral_conversion<std::uint64_t>(const std::string& input, std::uint64_t& output) noexcept {
  return penstock::ReadWholeNumber(input, &output);
}

}  // namespace CLI::detail
