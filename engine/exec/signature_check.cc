#include "engine/exec/signature_check.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/shape_text.h"
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
  return absl::OkStatus();
}

// Whether names and number of the values are not known before a run.
bool OnlyARunTells(const std::vector<TensorSignature>& signature) {
  return signature.empty() || (signature.size() == 1 && signature[0].any && signature[0].name.empty());
}

const NamedValue* FirstSplit(const NamedValues& ordered) {
  for (const NamedValue& one : ordered) {
    if (one.value.is_tensor() && one.value.tensor()->dim() > 0) return &one;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<NamedValues> MatchSignature(const std::vector<TensorSignature>& signature, const NamedValues& values,
                                           std::string_view field) {
  if (signature.size() == 1 && OnlyARunTells(signature)) return values;
  const std::string list(field);
  NamedValues ordered;
  ordered.resize(signature.size());
  ordered.tuple = values.tuple;
  std::vector<bool> given(signature.size(), false);
  std::map<std::string, int64_t> rows;  // of the first tensor of each word
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string place = absl::StrCat(list, "[", i, "]");
    const auto found = std::find_if(signature.begin(), signature.end(),
                                    [&](const TensorSignature& one) { return one.name == values[i].name; });
    if (found == signature.end()) {
      return Mismatch(place + ".name", absl::StrCat("must be one of ", KnownNames(signature)), values[i].name);
    }
    const auto position = static_cast<size_t>(found - signature.begin());
    if (given[position]) return Mismatch(place + ".name", "is given twice", values[i].name);
    given[position] = true;
    ordered[position] = values[i];
    if (found->any) continue;
    const at::Tensor* tensor = values[i].value.any_tensor();
    if (tensor == nullptr) {
      return Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                   absl::StrCat(place, ": expected Tensor, but got ", values[i].value.TypeName()))
          .With("field", place)
          .With("value", values[i].value.TypeName());
    }
    PENSTOCK_RETURN_IF_ERROR(CheckTensor(*found, *tensor, place));
    if (found->shape.empty()) ordered[position].value = WholeTensor{*tensor};  // every micro-batch gets the number
    if (ordered[position].value.is_whole() || found->shape[0] >= 0) continue;  // whose rows are its own
    const int64_t of_first = rows.try_emplace(found->rows, tensor->size(0)).first->second;
    if (tensor->size(0) != of_first) {
      return Mismatch(place + ".shape", absl::StrCat("must have ", of_first, " rows as the first"),
                      ShapeText(tensor->sizes()));
    }
  }
  for (size_t i = 0; i < signature.size(); ++i) {
    if (given[i]) continue;
    return Mismatch(list, absl::StrCat("lacks ", signature[i].name), absl::StrCat(values.size(), " tensors"));
  }
  return ordered;
}

int64_t RowsOf(const NamedValues& ordered) {
  const NamedValue* first = FirstSplit(ordered);
  return first == nullptr ? 0 : first->value.tensor()->size(0);
}

absl::Status CheckHasRows(const NamedValues& ordered, const NamedValues& given, std::string_view field) {
  const NamedValue* first = FirstSplit(ordered);
  if (first == nullptr || RowsOf(ordered) > 0) return absl::OkStatus();
  const auto place = std::find_if(given.begin(), given.end(), [&](const NamedValue& one) {
    return one.name == first->name && one.value.is_tensor();
  });
  return Mismatch(absl::StrCat(absl::string_view(field.data(), field.size()), "[", place - given.begin(), "].shape"),
                  "must have at least one row to train on or to evaluate", ShapeText(first->value.tensor()->sizes()));
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
    if (found == signature.end() && OnlyARunTells(signature)) {
      return Mismatch(place, "can't be chosen by name, for this model tells what it returns only when it runs",
                      wanted[i]);
    }
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
