#pragma once

// What the kernel says that a thread has had of a core.

#include <cstdint>

namespace penstock {

// Nanoseconds in which the calling thread ran on a core; sleeping, and waiting for a core that others had, are not in
// it.
int64_t ThreadTimeNanos();

}  // namespace penstock
