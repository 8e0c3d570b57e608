#include "engine/exec/signature_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

absl::Status Mismatch(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
               absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

std::string TypeText(const at::Tensor& tensor) {
  const std::optional<DataType> type = ToDataType(tensor.scalar_type());
  return std::string(type.has_value() ? DataTypeName(*type) : c10::toString(tensor.scalar_type()));
}

std::string KnownNames(const std::vector<TensorSignature>& signature) {
  std::vector<std::string> names;
  for (const TensorSignature& one : signature) names.push_back(one.name);
  return absl::StrJoin(names, ", ");
}

absl::Status CheckTensor(const TensorSignature& want, const at::Tensor& tensor, const std::string& field) {
  if (ToScalarType(want.type) != tensor.scalar_type()) {
    return Mismatch(field + ".type", "must be " + std::string(DataTypeName(want.type)), TypeText(tensor));
  }
  const std::string want_text = ShapeText(want.shape);
  if (tensor.dim() != static_cast<int64_t>(want.shape.size())) {
    return Mismatch(field + ".shape", absl::StrCat("must have rank ", want.shape.size(), " as ", want_text),
                    ShapeText(tensor.sizes()));
  }
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (want.shape[d] >= 0 && tensor.size(d) != want.shape[d]) {
      return Mismatch(field + ".shape", absl::StrCat("must match ", want_text), ShapeText(tensor.sizes()));
    }
  }
  if (tensor.size(0) < 1) return Mismatch(field + ".shape", "must have at least one row", ShapeText(tensor.sizes()));
  return absl::OkStatus();
}

}  // namespace

std::string ShapeText(c10::IntArrayRef shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<NamedTensors> MatchSignature(const std::vector<TensorSignature>& signature, const NamedTensors& tensors,
                                            std::string_view field) {
  const std::string list(field);
  NamedTensors ordered(signature.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string place = absl::StrCat(list, "[", i, "]");
    const auto found = std::find_if(signature.begin(), signature.end(),
                                    [&](const TensorSignature& one) { return one.name == tensors[i].name; });
    if (found == signature.end()) {
      return Mismatch(place + ".name", absl::StrCat("must be one of ", KnownNames(signature)), tensors[i].name);
    }
    NamedTensor& slot = ordered[static_cast<size_t>(found - signature.begin())];
    if (slot.tensor.defined()) return Mismatch(place + ".name", "is given twice", tensors[i].name);
    PENSTOCK_RETURN_IF_ERROR(CheckTensor(*found, tensors[i].tensor, place));
    slot = tensors[i];
    if (slot.tensor.size(0) != tensors[0].tensor.size(0)) {
      return Mismatch(place + ".shape", absl::StrCat("must have ", tensors[0].tensor.size(0), " rows as the first"),
                      ShapeText(slot.tensor.sizes()));
    }
  }
  for (size_t i = 0; i < signature.size(); ++i) {
    if (!ordered[i].tensor.defined())
      return Mismatch(list, absl::StrCat("lacks ", signature[i].name), absl::StrCat(tensors.size(), " tensors"));
  }
  return ordered;
}

absl::StatusOr<std::vector<int>> MatchNames(const std::vector<TensorSignature>& signature,
                                            const std::vector<std::string>& wanted, std::string_view field) {
  std::vector<int> positions;
  if (wanted.empty()) {
    for (size_t i = 0; i < signature.size(); ++i) positions.push_back(static_cast<int>(i));
    return positions;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string place = absl::StrCat(absl::string_view(field.data(), field.size()), "[", i, "]");
    const auto found = std::find_if(signature.begin(), signature.end(),
                                    [&](const TensorSignature& one) { return one.name == wanted[i]; });
    if (found == signature.end())
      return Mismatch(place, absl::StrCat("must be one of ", KnownNames(signature)), wanted[i]);
    const int position = static_cast<int>(found - signature.begin());
    if (std::count(positions.begin(), positions.end(), position) != 0)
      return Mismatch(place, "is wanted twice", wanted[i]);
    positions.push_back(position);
  }
  return positions;
}

}  // namespace penstock
