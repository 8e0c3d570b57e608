#include "engine/observe/allocator_statistics.h"

#include <cstddef>

// jemalloc's, where the program is linked with it (server/heap.cc).
extern "C" __attribute__((weak)) int mallctl(const char* name, void* old, size_t* old_size, void* value, size_t size);

namespace penstock {
namespace {

int64_t Read(const char* name) {
  size_t value = 0;
  size_t size = sizeof(value);
  mallctl(name, &value, &size, nullptr, 0);
  return static_cast<int64_t>(value);
}

}  // namespace

AllocatorStatistics ReadAllocatorStatistics() {
  if (mallctl == nullptr) return {};
  uint64_t epoch = 1;  // else the statistics are those of the last time
  mallctl("epoch", nullptr, nullptr, &epoch, sizeof(epoch));
  // What threads have freed into their caches counts as allocated there. 4096: all arenas together.
  const int64_t allocated = Read("stats.allocated") - Read("stats.arenas.4096.tcache_bytes");
  return {.allocated_bytes = allocated, .kept_bytes = Read("stats.resident") - Read("stats.metadata") - allocated};
}

}  // namespace penstock
