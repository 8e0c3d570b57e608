#pragma once

// Tensors as the content of a file for other programs, by the file's name.

#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "client/lib/host_tensor.h"

namespace penstock {

// `path` ends in .npz: an archive of arrays as numpy.load() reads it, without compression; else safetensors, with `metadata`.
//
// Fails:     INVALID_ARGUMENT / USAGE naming `argument`: what an .npz can't hold, bfloat16 or more than 4 GiB.
absl::StatusOr<std::string> TensorFile(const std::string& path, const std::string& argument,
                                       std::span<const HostTensor> tensors,
                                       const std::map<std::string, std::string>& metadata);

}  // namespace penstock
