#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace penstock {

// Whether a caller may be called so: 1 to 128 of a to z, A to Z, 0 to 9 and _ . @ : -
// Fails: INVALID_ARGUMENT / NAME_INVALID with `field` and the value.
absl::Status CheckCallerName(std::string_view caller, std::string_view field);

}  // namespace penstock
