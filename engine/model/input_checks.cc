#include "engine/model/input_checks.h"

#include <ATen/autocast_mode.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/shape_text.h"
#include "engine/device/torch_status.h"
#include "engine/tensor/codec.h"

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

// Operators under autocast choose the types of their results.
void CheckType(const at::Tensor& input, std::string_view kind, at::ScalarType type) {
  if (input.scalar_type() == type) return;
  if (input.is_floating_point() && at::autocast::is_autocast_enabled(input.device().type())) return;
  const std::optional<DataType> name = ToDataType(type);
  const std::string_view wanted = DataTypeName(name.value_or(DataType::kUnspecified));
  Throw(kind, "inputs[0].type", absl::StrCat("must be ", View(wanted)), c10::toString(input.scalar_type()));
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

const at::Tensor& WideInput(const Batch& inputs, std::string_view kind, at::ScalarType type, int64_t width,
                            int64_t min_rank) {
  const at::Tensor& input = OnlyInput(inputs, kind);
  CheckType(input, kind, type);
  if (input.dim() < min_rank || input.size(-1) != width) {
    Throw(kind, "inputs[0].shape",
          absl::StrCat("must have at least ", min_rank, " dimensions, the last of size ", width),
          ShapeText(input.sizes()));
  }
  return input;
}

const at::Tensor& ImageInput(const Batch& inputs, std::string_view kind, at::ScalarType type, int64_t channels) {
  const at::Tensor& input = OnlyInput(inputs, kind);
  CheckType(input, kind, type);
  CheckImage(input, kind, channels);
  return input;
}

void CheckImage(const at::Tensor& input, std::string_view kind, int64_t channels) {
  if (input.dim() == 4 && (channels < 0 || input.size(1) == channels)) return;
  const std::string count = channels < 0 ? "channels" : absl::StrCat(channels, " channels");
  Throw(kind, "inputs[0].shape", absl::StrCat("must be rows, ", count, ", height, width"), ShapeText(input.sizes()));
}

Batch Arguments(const Batch& inputs) {
  if (inputs.atomic() && inputs[0].tuple() != nullptr) return Batch::Tuple(*inputs[0].tuple());
  return inputs;
}

void ThrowInputError(std::string_view kind, std::string_view field, std::string_view problem, int64_t value) {
  Throw(kind, field, problem, absl::StrCat(value));
}

}  // namespace penstock
