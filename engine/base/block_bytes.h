#pragma once

// What small things take of the heap, near enough to be counted.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace penstock {

// Of a block: allocators cut them in multiples of 16.
constexpr int64_t BlockBytes(size_t bytes) { return static_cast<int64_t>((bytes + 15) / 16 * 16); }

// Of a text, beside the string itself.
inline int64_t BlockBytes(const std::string& text) {
  return text.capacity() > std::string().capacity() ? BlockBytes(text.capacity() + 1) : 0;
}

// Of an entry of a std::map, which has three pointers and a colour beside it.
template <typename Key, typename Value>
constexpr int64_t MapNodeBytes() {
  return BlockBytes(4 * sizeof(void*) + sizeof(std::pair<const Key, Value>));
}

}  // namespace penstock
