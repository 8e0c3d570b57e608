#pragma once

// Invariants inside a room: a failure is a bug of ours and ends the process. Anything that a client, a file, the network
// or a device can cause is an absl::Status instead.

#include <cstdio>
#include <cstdlib>

#define PENSTOCK_CHECK(condition)                                                            \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#ifdef NDEBUG
#define PENSTOCK_DCHECK(condition) \
  do {                             \
  } while (false && (condition))
#else
#define PENSTOCK_DCHECK(condition) PENSTOCK_CHECK(condition)
#endif
