#pragma once

// The names that a specification gives to floating types.

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"

namespace penstock {

// The type of parameters: fp32 (also if empty), fp64, bf16, fp16.
//
// Fails:     SPEC_INVALID naming spec.model.dtype.
absl::StatusOr<at::ScalarType> DtypeOf(const std::string& name);

// The type that autocast prefers: bf16, fp16; nothing if empty.
//
// Fails:     SPEC_INVALID naming spec.model.autocast.
absl::StatusOr<std::optional<at::ScalarType>> AutocastOf(const std::string& name);

}  // namespace penstock
