#pragma once

// Checks of numbers that say in words what an option wants; CLI11's own print the bounds of a double, digit by digit.

#include <CLI/CLI.hpp>

namespace penstock {

// Above 0.
CLI::Validator Positive();
// 0 or above.
CLI::Validator NonNegative();

}  // namespace penstock
