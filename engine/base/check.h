#pragma once

// Invariants inside a room: a failure is a bug of ours and ends the process. Anything that a client, a file, the
// network or a device can cause is an absl::Status instead.

namespace penstock {

// Writes the failure to stderr, waits at most a second if stderr is not read, and ends the process. Takes no lock.
[[noreturn]] void EndBroken(const char* file, int line, const char* condition);

}  // namespace penstock

#define PENSTOCK_CHECK(condition)                            \
  do {                                                       \
    if (!(condition)) [[unlikely]]                           \
      ::penstock::EndBroken(__FILE__, __LINE__, #condition); \
  } while (false)

#ifdef NDEBUG
#define PENSTOCK_DCHECK(condition) \
  do {                             \
  } while (false && (condition))
#else
#define PENSTOCK_DCHECK(condition) PENSTOCK_CHECK(condition)
#endif
