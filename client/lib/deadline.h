#pragma once

// Deadlines on a clock.

#include <cstdint>

#include "absl/time/time.h"
#include "engine/base/clock.h"

namespace penstock {

// The clock's reading when `duration` has passed; INT64_MAX, which stands for never, where that is later.
inline int64_t DeadlineAfter(Clock* clock, absl::Duration duration) {
  return absl::ToInt64Nanoseconds(absl::Nanoseconds(clock->NowNanos()) + duration);
}

}  // namespace penstock
