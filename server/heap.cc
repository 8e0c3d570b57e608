// How jemalloc serves the daemon, which is linked with it; jemalloc reads this before main().
//
// Activations are megabytes and live for one micro-batch. The C library gives such blocks back to the kernel at each
// free, and every step pays for mapping and clearing them again. Here freed blocks of any size stay, until
// ReturnFreedMemory() gives them back when a pipeline goes. One arena for all threads: what one lane has freed serves the
// others. Small blocks come from a cache of each thread, so lanes do not wait for each other there.
extern "C" {
extern const char* malloc_conf;
const char* malloc_conf = "narenas:1,oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:0";
}
