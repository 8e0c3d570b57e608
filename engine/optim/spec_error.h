#pragma once

#include <string>

#include "absl/status/status.h"

namespace penstock {

// SPEC_INVALID that names a field of the optimizer's specification and its value.
absl::Status OptimizerError(const std::string& field, const std::string& problem, const std::string& value);

}  // namespace penstock
