#pragma once

// How this room refuses a specification.

#include <set>
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

// What the room of schedules has refused, as a field of the specification.
inline absl::Status OfSpecSchedule(const absl::Status& status) {
  auto values = ValuesOf(status);
  const std::set<std::string> known = {"kind", "micro_batches", "chunks", "lag", "live_limit"};
  if (ReasonOf(status) != "FIELD_INVALID" || known.count(values["field"]) == 0) return status;
  return Error(status.code(), "SPEC_INVALID", absl::StrCat("spec.schedule.", status.message()))
      .With("field", absl::StrCat("spec.schedule.", values["field"]))
      .With("value", values["value"]);
}

}  // namespace penstock
