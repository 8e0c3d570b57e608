#include "engine/model/layers/input_checks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

[[noreturn]] void Throw(std::string_view kind, std::string_view field, std::string_view problem,
                        std::string_view value) {
  ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                    absl::StrCat(View(field), " of ", View(kind), ": ", View(problem), ", got ", View(value)))
                  .With("field", field)
                  .With("value", value));
}

}  // namespace

const at::Tensor& OnlyInput(const Batch& inputs, std::string_view kind) {
  if (inputs.size() != 1) Throw(kind, "inputs", "must be one tensor", absl::StrCat(inputs.size()));
  if (!inputs[0].is_tensor()) {
    ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                      absl::StrCat(View(kind), ": expected Tensor, but got ", inputs[0].TypeName()))
                    .With("field", "inputs[0]")
                    .With("value", inputs[0].TypeName()));
  }
  return *inputs[0].tensor();
}

const at::Tensor& WideInput(const Batch& inputs, std::string_view kind, int64_t width, int64_t least_rank) {
  const at::Tensor& input = OnlyInput(inputs, kind);
  if (input.scalar_type() != at::kFloat) {
    Throw(kind, "inputs[0].type", "must be FP32", c10::toString(input.scalar_type()));
  }
  if (input.dim() < least_rank || input.size(-1) != width) {
    Throw(kind, "inputs[0].shape",
          absl::StrCat("must have at least ", least_rank, " dimensions, the last of size ", width),
          absl::StrCat("[", absl::StrJoin(input.sizes(), ", "), "]"));
  }
  return input;
}

void ThrowInputError(std::string_view kind, std::string_view field, std::string_view problem, int64_t value) {
  Throw(kind, field, problem, absl::StrCat(value));
}

}  // namespace penstock
