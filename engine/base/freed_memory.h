#pragma once

#include <malloc.h>

namespace penstock {

// The C library keeps what was freed for the next allocation: what something large held goes back to the machine. It looks at
// the whole heap, which takes milliseconds: only where a pipeline has gone.
inline void ReturnFreedMemory() { malloc_trim(0); }

}  // namespace penstock
