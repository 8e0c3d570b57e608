#pragma once

#include <cstddef>

namespace penstock {

// Has the kernel map the pages of memory that is about to be written; two threads do it where the memory is large. One call
// maps many pages, which costs less than a page fault at the first write to each. Changes no contents. Only a hint: does
// nothing for less than a mebibyte, nor where the kernel can't (Linux before 5.14).
void MapPages(void* memory, size_t bytes);

}  // namespace penstock
