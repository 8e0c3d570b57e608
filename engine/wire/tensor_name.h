#pragma once

// What a tensor may be called.

#include <string_view>

namespace penstock {

inline constexpr int kMaxTensorNameBytes = 128;

// True for 1 to 128 printable ASCII characters.
bool IsTensorName(std::string_view name);

}  // namespace penstock
