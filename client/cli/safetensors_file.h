#pragma once

// Tensors in a file: the safetensors format.

#include <map>
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

}  // namespace penstock
