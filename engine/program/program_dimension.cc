#include "engine/program/program_dimension.h"

#include "absl/strings/numbers.h"

namespace penstock {
namespace {

bool Take(std::string_view& rest, std::string_view token) {
  if (rest.substr(0, token.size()) != token) return false;
  rest.remove_prefix(token.size());
  return true;
}

bool ParseInt(std::string_view text, int64_t& number) {
  return absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number);
}

// sympy's srepr: Symbol('s1', ...), Integer(2), Add(a, b), Mul(a, b). What is not of this form is left in `rest`.
ProgramDimension ReadExpression(std::string_view& rest) {
  const std::string_view all = rest;
  const auto leave = [&] {
    rest = all;
    return ProgramDimension{};
  };
  if (Take(rest, "Symbol('")) {
    const size_t end = rest.find('\'');
    const size_t close = rest.find(')');
    if (end == std::string_view::npos || close == std::string_view::npos || close < end) return leave();
    ProgramDimension symbol{.symbol = std::string(rest.substr(0, end))};
    rest.remove_prefix(close + 1);
    return symbol;
  }
  if (Take(rest, "Integer(")) {
    const size_t close = rest.find(')');
    int64_t number = 0;
    if (close == std::string_view::npos || !ParseInt(rest.substr(0, close), number)) return leave();
    rest.remove_prefix(close + 1);
    return {.addend = number};
  }
  const bool product = rest.substr(0, 4) == "Mul(";
  if (!Take(rest, "Mul(") && !Take(rest, "Add(")) return leave();
  const std::string_view arguments = rest;
  const ProgramDimension left = ReadExpression(rest);
  if (rest == arguments || !Take(rest, ", ")) return leave();
  const std::string_view second = rest;
  const ProgramDimension right = ReadExpression(rest);
  if (rest == second || !Take(rest, ")")) return leave();
  if (!left.symbol.empty() && !right.symbol.empty()) return leave();
  const ProgramDimension& number = left.symbol.empty() ? left : right;
  ProgramDimension result = left.symbol.empty() ? right : left;
  const bool overflows = product ? __builtin_mul_overflow(result.factor, number.addend, &result.factor) ||
                                       __builtin_mul_overflow(result.addend, number.addend, &result.addend)
                                 : __builtin_add_overflow(result.addend, number.addend, &result.addend);
  return overflows ? leave() : result;
}

}  // namespace

std::optional<ProgramDimension> ParseProgramDimension(std::string_view expression) {
  std::string_view rest = expression;
  ProgramDimension dimension = ReadExpression(rest);
  if (expression.empty() || !rest.empty()) return std::nullopt;
  return dimension;
}

}  // namespace penstock
