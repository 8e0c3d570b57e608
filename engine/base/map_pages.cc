#include "engine/base/map_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "engine/base/guard.h"
#include "engine/base/thread.h"

namespace penstock {
namespace {

constexpr size_t kLeast = size_t{1} << 20;
constexpr size_t kWorthAThread = size_t{16} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers don't name

void Map(uintptr_t from, uintptr_t to) {
  madvise(reinterpret_cast<void*>(from), to - from, kPopulateWrite);  // a hint: who writes gets what is missing
}

}  // namespace

void MapPages(void* memory, size_t bytes) {
  if (bytes < kLeast) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t from = reinterpret_cast<uintptr_t>(memory) / page * page;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(memory) + bytes - 1) / page * page + page;
  if (bytes < kWorthAThread) return Map(from, to);
  const uintptr_t middle = from + (to - from) / page / 2 * page;
  const absl::Status helped = Guarded("mapping pages", [&] {
    Thread other("ps-pages", [&] { Map(middle, to); });
    Map(from, middle);
  });
  if (!helped.ok()) Map(from, to);
}

}  // namespace penstock
