#include "engine/base/freed_memory.h"

#include <malloc.h>

#include <cstddef>

// jemalloc's, where the program is linked with it (server/heap.cc); tests and sanitizers keep their own allocator.
extern "C" __attribute__((weak)) int mallctl(const char* name, void* old, size_t* old_size, void* value, size_t size);

namespace penstock {

void ReturnFreedMemory() {
  if (mallctl == nullptr) {
    malloc_trim(0);
    return;
  }
  mallctl("thread.tcache.flush", nullptr, nullptr, nullptr, 0);
  mallctl("arena.0.purge", nullptr, nullptr, nullptr, 0);
}

}  // namespace penstock
