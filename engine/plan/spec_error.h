#pragma once

// How this room refuses a specification.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {

// SPEC_INVALID with field and value: "FIELD: PROBLEM, got VALUE".
inline absl::Status RefuseSpec(const std::string& field, const std::string& problem, const std::string& value,
                               absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  return Error(code, "SPEC_INVALID", absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

}  // namespace penstock
