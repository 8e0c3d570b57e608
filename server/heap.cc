// How jemalloc serves the daemon, which is linked with it.
//
// Activations are megabytes and live for one micro-batch. The C library gives such blocks back to the kernel at each
// free, and every step pays for mapping and clearing them again. Here a freed block below 32 MiB stays, and serves the
// next allocation of any such size, until ReturnFreedMemory() gives it back when a pipeline goes; a larger one, such as
// a result, goes back at once. One arena for all threads: what one lane has freed serves the others. Small blocks come
// from a cache of each thread, so that lanes seldom wait for each other there.

#include <sys/types.h>

#include <cstddef>
#include <cstdlib>

extern "C" {

// jemalloc reads it before main(). Without the extents' limit a large block that is free would serve no small ones. A
// time after which freed blocks go back, however long, would cost a training step eight times its page faults.
extern const char* malloc_conf;
const char* malloc_conf =
    "narenas:1,oversize_threshold:33554432,lg_extent_max_active_fit:63,dirty_decay_ms:-1,muzzy_decay_ms:0";

int mallctl(const char* name, void* old, size_t* old_size, void* value, size_t size);
}

// jemalloc makes an arena of its own for the larger blocks with the first of them, behind those that are counted.
[[gnu::constructor]] static void ReturnLargeBlocksAtOnce() {
  void* volatile first = std::malloc(size_t{32} << 20);
  std::free(first);
  ssize_t milliseconds = 0;
  if (mallctl("arena.1.dirty_decay_ms", nullptr, nullptr, &milliseconds, sizeof(milliseconds)) != 0) std::abort();
}
