#pragma once

// Texts of settings to sizes and times.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace penstock {

// "8GiB", "64KiB" or plain bytes; "5s", "500ms", "1h" or plain seconds.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID of `field`; for a time, also where it is negative or above a year.
absl::StatusOr<int64_t> ParseBytes(std::string_view text, std::string_view field);
absl::StatusOr<absl::Duration> ParseTime(std::string_view text, std::string_view field);

}  // namespace penstock
