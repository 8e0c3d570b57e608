#pragma once

// Tensors in a file: the safetensors format.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/lib/host_tensor.h"

namespace penstock {

// A whole file: 8 bytes of header length, a JSON header padded with blanks, then the tensors' bytes, 8-byte aligned.
std::string WriteSafetensors(std::span<const HostTensor> tensors, const std::map<std::string, std::string>& metadata);

// The tensors of a file, in the order of their bytes.
//
// Fails: INVALID_ARGUMENT / USAGE for anything that is not such a file: a header that is too long, is no JSON, or names
//        types, shapes and ranges that contradict each other.
absl::StatusOr<std::vector<HostTensor>> ReadSafetensors(std::string_view file);

// What a header says of a tensor, whose bytes are `begin` to `end` behind the header.
struct SafetensorsEntry {
  TensorHeader header;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// For files that are read in places. How long the header is, with the 8 bytes of its own length, by the file's first 8
// bytes; then what it says: the entries in the order of their bytes, which fill `data_bytes` without a gap; nothing: as
// many as the entries have. Whether the bytes of a tensor are what its type and shape need is not checked.
//
// Fails: as ReadSafetensors().
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::string_view start, std::optional<uint64_t> file_bytes);
absl::StatusOr<std::vector<SafetensorsEntry>> ReadSafetensorsHeader(std::string_view header,
                                                                    std::optional<uint64_t> data_bytes);

}  // namespace penstock
