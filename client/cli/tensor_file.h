#pragma once

// Files of tensors, for and from other programs: what they are, their name says.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/session.h"
#include "client/lib/host_tensor.h"

namespace penstock {

// `path` ends in .npz: an archive of arrays as numpy.load() reads it, without compression; else safetensors, with `metadata`.
//
// Fails:     INVALID_ARGUMENT / USAGE naming `argument`: what an .npz can't hold, bfloat16 or more than 4 GiB.
absl::StatusOr<std::string> TensorFile(const std::string& path, const std::string& argument,
                                       std::span<const HostTensor> tensors,
                                       const std::map<std::string, std::string>& metadata);

// The tensors of a file: of an .npz what numpy.savez or numpy.savez_compressed wrote, else safetensors; "-" is stdin.
//
// Fails:     usage errors that name the file.
absl::StatusOr<std::vector<HostTensor>> ReadTensorFile(const std::string& path, Session& session);

}  // namespace penstock
