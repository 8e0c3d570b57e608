#pragma once

// Sizes of an exported program that are no numbers.

#include <cstddef>
#include <optional>
#include <string_view>

#include "engine/program/exported_program.h"

namespace penstock {

// Longer expressions must not be parsed: parsing one calls itself.
inline constexpr size_t kMaxDimensionBytes = 1000;

// Reads what sympy's srepr writes, Mul(Integer(2), Symbol('s1', positive=True)); its example is 1. Nothing for what is
// no number and no sum or product of one symbol and numbers, or overflows.
std::optional<ProgramDimension> ParseProgramDimension(std::string_view expression);

}  // namespace penstock
