#include "engine/model/precision.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

absl::Status Unknown(const std::string& field, const std::string& known, const std::string& name) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat(field, ": must be ", known, " or empty, got ", Shortened(name)))
      .With("field", field)
      .With("value", Shortened(name));
}

}  // namespace

absl::StatusOr<at::ScalarType> DtypeOf(const std::string& name) {
  if (name.empty() || name == "fp32") return at::kFloat;
  if (name == "fp64") return at::kDouble;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return Unknown("spec.model.dtype", "fp32, fp64, bf16, fp16", name);
}

absl::StatusOr<std::optional<at::ScalarType>> AutocastOf(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return Unknown("spec.model.autocast", "bf16, fp16", name);
}

}  // namespace penstock
