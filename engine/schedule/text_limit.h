#pragma once

// How long the text of a schedule may be.

#include <cstddef>

namespace penstock {

// No schedule within the limits of schedule.h prints to more.
inline constexpr size_t kMaxScheduleBytes = size_t{256} << 20;

}  // namespace penstock
