#pragma once

// Weights in the safetensors format: 8 bytes of header length, a JSON header, then the elements. It holds data only.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// What a file holds.
struct Safetensors {
  std::map<std::string, std::string> metadata;
  NamedTensors tensors = {};  // in the order of their elements in the file
};

struct SafetensorsLimits {
  int64_t header_bytes = int64_t{16} << 20;
  int64_t tensors = 100'000;
  int rank = 8;
  int name_bytes = 512;
};

// Reads a whole file; the tensors are copies.
//
// Fails:     INVALID_ARGUMENT / SPEC_INVALID, with the values "field" and "value", for anything that is not exactly the
//            format: a length beyond the file, JSON that is malformed, too deep or repeats a key, an unknown type, a
//            shape that does not fit its range, and ranges that overlap, leave a gap or end elsewhere than the file.
//            RESOURCE_EXHAUSTED / HOST_MEMORY.
absl::StatusOr<Safetensors> ReadSafetensors(std::string_view bytes, const SafetensorsLimits& limits = {});

// Writes tensors in the order given, by several calls of `append`; stops at its first error.
//
// Fails:     as `append`; INVALID_ARGUMENT / SPEC_INVALID for a name that repeats or an element type without a name.
absl::Status WriteSafetensors(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                              const std::function<absl::Status(std::string_view)>& append);

}  // namespace penstock
