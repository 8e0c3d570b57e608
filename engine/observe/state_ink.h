#pragma once

// What can be read on the colour of a state.

#include <cstdlib>
#include <string>
#include <string_view>

namespace penstock {

// Whether white letters are read better than black ones on "#rrggbb". By the weights of television, which come close to
// WCAG's relative luminance without its gamma.
inline bool WantsWhiteInk(std::string_view colour) {
  const auto part = [&](size_t at) {
    return static_cast<double>(std::strtol(std::string(colour.substr(at, 2)).c_str(), nullptr, 16));
  };
  return 0.299 * part(1) + 0.587 * part(3) + 0.114 * part(5) <= 140;
}

}  // namespace penstock
