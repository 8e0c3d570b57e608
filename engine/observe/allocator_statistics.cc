#include "engine/observe/allocator_statistics.h"

#include <cstddef>

// jemalloc's, where the program is linked with it (server/heap.cc).
extern "C" __attribute__((weak)) int mallctl(const char* name, void* old, size_t* old_size, void* value, size_t size);

namespace penstock {
namespace {

std::optional<int64_t> Read(const char* name) {
  size_t value = 0;
  size_t size = sizeof(value);
  if (mallctl(name, &value, &size, nullptr, 0) != 0) return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace

std::optional<AllocatorStatistics> ReadAllocatorStatistics() {
  if (mallctl == nullptr) return std::nullopt;
  uint64_t epoch = 1;  // else the statistics are those of the last time
  if (mallctl("epoch", nullptr, nullptr, &epoch, sizeof(epoch)) != 0) return std::nullopt;
  const std::optional<int64_t> resident = Read("stats.resident");
  // With what the caches of threads hold, of all arenas together.
  const std::optional<int64_t> allocated = Read("stats.allocated");
  const std::optional<int64_t> cached = Read("stats.arenas.4096.tcache_bytes");
  if (!resident.has_value() || !allocated.has_value() || !cached.has_value()) return std::nullopt;
  const int64_t given = *allocated - *cached;
  return AllocatorStatistics{.allocated_bytes = given, .kept_bytes = *resident - given};
}

}  // namespace penstock
