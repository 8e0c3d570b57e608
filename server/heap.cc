// How jemalloc serves the daemon, which is linked with it.
//
// Activations are megabytes and live for one micro-batch. The C library gives such blocks back to the kernel at each
// free, and every step pays for mapping and clearing them again. Here what was freed stays, and serves the next
// allocation of any size, until ReturnFreedMemory() gives it back when a pipeline goes. One arena for all threads: what
// one lane has freed serves the others. Small blocks come from a cache of each thread, so that lanes seldom wait for
// each other there.

#include <cstddef>

extern "C" {

// jemalloc reads it before main(). Without the extents' limit a large block that is free would serve no small ones.
extern const char* malloc_conf;
const char* malloc_conf =
    "narenas:1,oversize_threshold:0,lg_extent_max_active_fit:63,dirty_decay_ms:-1,muzzy_decay_ms:0";

int mallctl(const char* name, void* old, size_t* old_size, void* value, size_t size);
}

// Without jemalloc the program is not to link, rather than to run on another allocator.
[[gnu::used]] static int (*const kJemalloc)(const char*, void*, size_t*, void*, size_t) = mallctl;
