#pragma once

#include <malloc.h>

namespace penstock {

// Gives memory that was freed back to the machine: the C library would keep it for the next allocation. It
// looks at the whole heap, which takes milliseconds: only where a pipeline has gone.
inline void ReturnFreedMemory() { malloc_trim(0); }

}  // namespace penstock
