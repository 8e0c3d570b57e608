#include "engine/optim/spec_error.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {

absl::Status OptimizerError(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

}  // namespace penstock
