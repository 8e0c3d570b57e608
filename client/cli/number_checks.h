#pragma once

// Checks of numbers whose errors say in words what an option wants. CLI11's own print all digits of a double's bounds.

#include "client/cli/cli11.h"

namespace penstock {

// Above 0.
CLI::Validator Positive();
// 0 or above.
CLI::Validator NonNegative();

}  // namespace penstock
