#include "engine/tensor/microbatch.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

absl::Status SignatureError(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
               absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

std::string ShapeText(const at::Tensor& tensor) { return absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "]"); }

// Checks that piece `index` of an output can be joined to the first one.
absl::Status CheckPiece(const at::Tensor& first, const at::Tensor& piece, size_t index, const std::string& field) {
  if (piece.dim() == 0) {
    return SignatureError(field,
                          absl::StrCat("zero-dimensional tensor (at position ", index, ") cannot be concatenated"),
                          ShapeText(piece));
  }
  if (piece.scalar_type() != first.scalar_type() || piece.dim() != first.dim()) {
    return SignatureError(
        field,
        absl::StrCat("Types for microbatch outputs do not match, found: ", c10::toString(first.scalar_type()), " ",
                     ShapeText(first), " and ", c10::toString(piece.scalar_type()), " ", ShapeText(piece)),
        ShapeText(piece));
  }
  for (int64_t d = 1; d < first.dim(); ++d) {
    if (piece.size(d) != first.size(d)) {
      return SignatureError(
          field,
          absl::StrCat("Sizes of tensors must match except in dimension 0. Expected size ", first.size(d),
                       " but got size ", piece.size(d), " for tensor number ", index, " in the list"),
          ShapeText(piece));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> MicrobatchRows(int64_t rows, int asked) {
  PENSTOCK_CHECK(rows >= 0 && asked >= 1);
  if (rows == 0) return std::vector<int64_t>(asked, 0);
  const int64_t length = rows / asked + (rows % asked != 0);
  std::vector<int64_t> pieces(rows / length, length);
  if (rows % length != 0) pieces.push_back(rows % length);
  return pieces;
}

absl::StatusOr<int64_t> CommonRows(const NamedTensors& tensors, std::string_view field) {
  const std::string prefix(field);
  if (tensors.empty()) return SignatureError(prefix, "do not have any tensors", "none");
  for (const NamedTensor& named : tensors) {
    const std::string name = absl::StrCat(prefix, "[", named.name, "].shape");
    if (named.tensor.dim() == 0) {
      return SignatureError(name, "must have a batch dimension", ShapeText(named.tensor));
    }
    if (named.tensor.size(0) != tensors[0].tensor.size(0)) {
      return SignatureError(absl::StrCat(name, "[0]"),
                            absl::StrCat("must equal the ", tensors[0].tensor.size(0), " rows of ", tensors[0].name),
                            absl::StrCat(named.tensor.size(0)));
    }
  }
  return tensors[0].tensor.size(0);
}

absl::StatusOr<std::vector<Tensors>> Scatter(const NamedTensors& tensors, int asked, std::string_view field) {
  if (asked < 1) return InvalidField("micro_batches", "must be positive", absl::StrCat(asked));
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t rows, CommonRows(tensors, field));
  const std::vector<int64_t> pieces = MicrobatchRows(rows, asked);
  std::vector<Tensors> microbatches(pieces.size());
  int64_t begin = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (const NamedTensor& named : tensors) microbatches[i].push_back(named.tensor.narrow(0, begin, pieces[i]));
    begin += pieces[i];
  }
  return microbatches;
}

absl::StatusOr<NamedTensors> Gather(const std::vector<Tensors>& microbatches, const std::vector<std::string>& names) {
  if (microbatches.empty()) return SignatureError("outputs", "do not have any micro-batch", "none");
  NamedTensors joined;
  for (size_t output = 0; output < names.size(); ++output) {
    const std::string field = absl::StrCat("outputs[", names[output], "]");
    std::vector<at::Tensor> pieces;
    for (const Tensors& microbatch : microbatches) {
      if (microbatch.size() != names.size()) {
        return SignatureError("outputs", absl::StrCat("must be ", names.size()), absl::StrCat(microbatch.size()));
      }
      PENSTOCK_RETURN_IF_ERROR(CheckPiece(microbatches[0][output], microbatch[output], pieces.size(), field));
      pieces.push_back(microbatch[output]);
    }
    joined.push_back({names[output], pieces[0]});
    if (pieces.size() > 1) {
      PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { joined.back().tensor = at::cat(pieces, 0); }));
    }
  }
  return joined;
}

}  // namespace penstock
