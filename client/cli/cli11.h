#pragma once

// CLI11, with numbers as they are given: by itself it takes the nearest of 64 bits for a whole one that does not fit,
// 2^64 - 1 for -1 where there is no sign, 8 for 010, and for an empty text 0 or what is there without the option. And with
// switches that are on or off: by itself it counts those that are given as numbers, and throws what is no error of a
// command line. Files of this room include it instead of CLI11's own header.

#include <CLI/TypeTools.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace penstock {

// What a switch may be given. An empty text is none of them, but does not come here: EmptyValue().
inline bool ReadSwitch(const std::string& text, bool* on) {
  const std::string word = absl::AsciiStrToLower(text);
  for (const char* yes : {"true", "on", "yes", "enable", "t", "y", "+", "1"}) {
    if (word == yes) return *on = true;
  }
  *on = false;
  for (const char* no : {"false", "off", "no", "disable", "f", "n", "-", "0"}) {
    if (word == no) return true;
  }
  return false;
}

}  // namespace penstock

namespace CLI::detail {

template <>
inline bool lexical_cast<bool>(const std::string& input, bool& output) {
  return penstock::ReadSwitch(input, &output);
}

}  // namespace CLI::detail

#include <CLI/CLI.hpp>  // uses that of bool, so that it must be there before

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

namespace penstock {

template <typename Number>
bool ReadNumber(const std::string& text, Number* number) {
  return !text.empty() && CLI::detail::lexical_cast(text, *number);
}

template <typename Number>
bool ReadOptional(const std::vector<std::string>& texts, std::optional<Number>* number) {
  return ReadNumber(texts.at(0), &number->emplace());
}

}  // namespace penstock

namespace CLI::detail {

template <>
inline bool lexical_assign<int, int>(const std::string& input, int& output) {
  return penstock::ReadNumber(input, &output);
}

template <>
inline bool lexical_assign<std::int64_t, std::int64_t>(const std::string& input, std::int64_t& output) {
  return penstock::ReadNumber(input, &output);
}

template <>
inline bool lexical_assign<std::uint64_t, std::uint64_t>(const std::string& input, std::uint64_t& output) {
  return penstock::ReadNumber(input, &output);
}

template <>
inline bool lexical_assign<double, double>(const std::string& input, double& output) {
  return penstock::ReadNumber(input, &output);
}

template <>
inline bool lexical_conversion<std::optional<int>, std::optional<int>>(const std::vector<std::string>& strings,
                                                                       std::optional<int>& output) {
  return penstock::ReadOptional(strings, &output);
}

template <>
inline bool lexical_conversion<std::optional<std::int64_t>, std::optional<std::int64_t>>(
    const std::vector<std::string>& strings, std::optional<std::int64_t>& output) {
  return penstock::ReadOptional(strings, &output);
}

template <>
inline bool lexical_conversion<std::optional<std::uint64_t>, std::optional<std::uint64_t>>(
    const std::vector<std::string>& strings, std::optional<std::uint64_t>& output) {
  return penstock::ReadOptional(strings, &output);
}

template <>
inline bool lexical_conversion<std::optional<double>, std::optional<double>>(const std::vector<std::string>& strings,
                                                                             std::optional<double>& output) {
  return penstock::ReadOptional(strings, &output);
}

}  // namespace CLI::detail
