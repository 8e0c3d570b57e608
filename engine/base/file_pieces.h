#pragma once

// A file of any size, piece by piece.

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

// Visits the bytes of a file of the machine in their order; an error of `visit` ends it.
//
// Fails:     NOT_FOUND; INTERNAL for other faults of the machine; as `visit`.
absl::Status ReadInPieces(const std::string& path, const std::function<absl::Status(std::string_view)>& visit);

}  // namespace penstock
