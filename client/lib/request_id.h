#pragma once

// Names of calls, so that a repeated call is known to be the same one.

#include <string>

namespace penstock {

// A new random UUID (version 4), canonical and lower-case, from the system's secure randomness.
std::string NewRequestId();

}  // namespace penstock
