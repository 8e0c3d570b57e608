#pragma once

#include <cstddef>

namespace penstock {

// Has the kernel give memory its pages before it is written, some at a time and of large memory by two threads: a page that
// comes with its first write costs several times as much. Changes no contents. Only a hint: does nothing to less than a
// mebibyte, and nothing where the kernel can't (Linux before 5.14).
void MapPages(void* memory, size_t bytes);

}  // namespace penstock
