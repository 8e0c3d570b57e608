#include "engine/wire/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

constexpr size_t kBlockBytes = 16 << 10;  // stays in the first-level cache between copy and checksum

// ISA-L leaves the inversion at both ends to its caller and never writes to its input.
uint32_t ExtendRaw(uint32_t raw, const char* bytes, size_t size) {
  return crc32_iscsi(reinterpret_cast<unsigned char*>(const_cast<char*>(bytes)), static_cast<int>(size), raw);
}

}  // namespace

uint32_t ExtendCrc32c(uint32_t first, std::string_view second) {
  constexpr size_t kMaxAtOnce = size_t{1} << 30;  // ISA-L takes an int
  uint32_t raw = ~first;
  while (!second.empty()) {
    const size_t size = std::min(second.size(), kMaxAtOnce);
    raw = ExtendRaw(raw, second.data(), size);
    second.remove_prefix(size);
  }
  return ~raw;
}

uint32_t CopyAndExtendCrc32c(uint32_t first, std::string_view from, char* to) {
  uint32_t raw = ~first;
  while (!from.empty()) {
    const size_t size = std::min(from.size(), kBlockBytes);
    std::memcpy(to, from.data(), size);
    raw = ExtendRaw(raw, to, size);
    from.remove_prefix(size);
    to += size;
  }
  return ~raw;
}

}  // namespace penstock
