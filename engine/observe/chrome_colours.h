#pragma once

// The colours of states in chrome://tracing, which knows colours by its own names only.

#include <string_view>

namespace penstock {

// The reserved name that comes nearest to a colour "#rrggbb", by red, green and blue.
std::string_view NearestChromeColour(std::string_view hex);

}  // namespace penstock
