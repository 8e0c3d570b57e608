#include "engine/tensor/codec.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

constexpr std::array<std::pair<DataType, at::ScalarType>, kDataTypeCount - 1> kTypes = {{
    {DataType::kBool, at::kBool},
    {DataType::kUint8, at::kByte},
    {DataType::kInt8, at::kChar},
    {DataType::kFp16, at::kHalf},
    {DataType::kBf16, at::kBFloat16},
    {DataType::kInt16, at::kShort},
    {DataType::kUint16, at::kUInt16},
    {DataType::kFp32, at::kFloat},
    {DataType::kInt32, at::kInt},
    {DataType::kUint32, at::kUInt32},
    {DataType::kFp64, at::kDouble},
    {DataType::kInt64, at::kLong},
    {DataType::kUint64, at::kUInt64},
}};

}  // namespace

std::optional<at::ScalarType> ToScalarType(DataType type) {
  for (const auto& [wire, scalar] : kTypes) {
    if (wire == type) return scalar;
  }
  return std::nullopt;
}

std::optional<DataType> ToDataType(at::ScalarType type) {
  for (const auto& [wire, scalar] : kTypes) {
    if (scalar == type) return wire;
  }
  return std::nullopt;
}

absl::StatusOr<TensorHeader> HeaderOf(std::string name, const at::Tensor& tensor) {
  const std::optional<DataType> type = ToDataType(tensor.scalar_type());
  if (!type.has_value()) {
    const char* const found = c10::toString(tensor.scalar_type());
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                 absl::StrCat(name, ".type: must be one that can be sent, got ", found))
        .With("field", name + ".type")
        .With("value", found);
  }
  return TensorHeader{.name = std::move(name),
                      .type = *type,
                      .shape = tensor.sizes().vec(),
                      .byte_size = static_cast<int64_t>(tensor.numel() * tensor.element_size())};
}

absl::StatusOr<at::Tensor> AllocateTensor(const TensorHeader& header) {
  const std::optional<at::ScalarType> type = ToScalarType(header.type);
  if (!type.has_value()) {
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_HEADER", header.name + ".type: must be set, got nothing")
        .With("field", header.name + ".type")
        .With("value", "");
  }
  at::Tensor tensor;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { tensor = at::empty(header.shape, *type); }));
  return tensor;
}

std::string_view BytesOf(const at::Tensor& tensor) {
  PENSTOCK_CHECK(tensor.is_contiguous());
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

char* MutableBytesOf(const at::Tensor& tensor) {
  PENSTOCK_CHECK(tensor.is_contiguous());
  return static_cast<char*>(tensor.mutable_data_ptr());
}

absl::Status CheckElements(const at::Tensor& tensor, std::string_view field) {
  if (tensor.scalar_type() != at::kBool) return absl::OkStatus();
  for (const char byte : BytesOf(tensor)) {
    if (byte == 0 || byte == 1) continue;
    const std::string name = std::string(field) + ".data";
    const std::string value = absl::StrCat(static_cast<int>(static_cast<unsigned char>(byte)));
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_HEADER",
                 name + ": every BOOL must be 0 or 1, got " + value)
        .With("field", name)
        .With("value", value);
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> DecodeTensor(const TensorHeader& header, const std::vector<std::string_view>& pieces,
                                        std::string_view field, const WireLimits& limits) {
  PENSTOCK_RETURN_IF_ERROR(ValidateTensorHeader(header, field, limits));
  int64_t received = 0;
  for (std::string_view piece : pieces) received += static_cast<int64_t>(piece.size());
  if (received != header.byte_size) {
    const std::string name = std::string(field) + ".data";
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_HEADER",
                 absl::StrCat(name, ": must have ", header.byte_size, " bytes, as type and shape say, got ", received))
        .With("field", name)
        .With("value", absl::StrCat(received));
  }
  PENSTOCK_ASSIGN_OR_RETURN(at::Tensor tensor, AllocateTensor(header));
  char* to = MutableBytesOf(tensor);
  for (std::string_view piece : pieces) {
    if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  PENSTOCK_RETURN_IF_ERROR(CheckElements(tensor, field));
  return tensor;
}

absl::StatusOr<at::Tensor> SendableTensor(const at::Tensor& tensor) {
  at::Tensor sendable;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { sendable = tensor.detach().contiguous().cpu(); }));
  return sendable;
}

}  // namespace penstock
