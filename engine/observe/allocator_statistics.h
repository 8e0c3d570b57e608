#pragma once

// What the allocator of this process has given out, and what it keeps.

#include <cstdint>

namespace penstock {

struct AllocatorStatistics {
  int64_t allocated_bytes = 0;  // that the program has, each block as large as it was cut
  // Resident beside them: freed blocks that serve the next allocation, in the caches of threads and as whole pages,
  // and pages that are used in part. Not the allocator's own records: it counts what it has set aside for them, 2 MiB
  // for each further GiB of addresses, of which few pages are touched.
  int64_t kept_bytes = 0;
};

// Zeros where the program has another allocator than jemalloc: tests and sanitizers.
AllocatorStatistics ReadAllocatorStatistics();

}  // namespace penstock
