#pragma once

namespace penstock {

// Gives memory that was freed back to the machine: the allocator would keep it for the next allocation. It looks at
// the whole heap, which takes milliseconds: only where a pipeline has gone.
void ReturnFreedMemory();

}  // namespace penstock
