#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace penstock {

// What another rank has sent can't be so: INVALID_ARGUMENT / RANK_MESSAGE with `field` and `value`; `problem` reads
// "must be 0 or 1".
absl::Status BadRankMessage(std::string_view field, std::string_view problem, std::string_view value);

}  // namespace penstock
