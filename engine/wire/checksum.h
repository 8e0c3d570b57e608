#pragma once

// The checksum of a chunk: CRC32C (Castagnoli), as in iSCSI and RFC 3720.

#include <cstdint>
#include <string_view>

namespace penstock {

// The checksum of `first` and `second` joined, from that of `first` and the bytes of `second`.
uint32_t ExtendCrc32c(uint32_t first, std::string_view second);

inline uint32_t Crc32c(std::string_view bytes) { return ExtendCrc32c(0, bytes); }

// Copies bytes and extends a checksum over them in one pass through the cache.
uint32_t CopyAndExtendCrc32c(uint32_t first, std::string_view from, char* to);

}  // namespace penstock
