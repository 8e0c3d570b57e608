#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

// "gpt/step-200" -> "pipelines/gpt/checkpoints/step-200"; a full name stays as it is. A usage error names `argument`.
absl::StatusOr<std::string> CheckpointName(const std::string& text, std::string_view argument);

}  // namespace penstock
