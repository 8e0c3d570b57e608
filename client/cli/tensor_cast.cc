#include "client/cli/tensor_cast.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

// Whether a value has its like in `To`.
template <typename To, typename From>
bool Fits(From value) {
  if constexpr (std::is_floating_point_v<From>) {
    return !std::isfinite(value) || std::isfinite(static_cast<To>(value));
  } else {
    return std::in_range<To>(value);
  }
}

template <typename To, typename From>
absl::StatusOr<HostTensor> Cast(const HostTensor& tensor) {
  TensorHeader header = tensor.header();
  header.type = kDataTypeOf<To>;
  header.byte_size = 0;
  PENSTOCK_ASSIGN_OR_RETURN(HostTensor made, HostTensor::Allocate(std::move(header)));
  PENSTOCK_ASSIGN_OR_RETURN(const std::span<const From> values, tensor.Values<From>());
  char* into = made.mutable_bytes();
  for (const From value : values) {
    if (!Fits<To>(value)) {
      return UsageError(tensor.name(),
                        absl::StrCat("must be of ", std::string(DataTypeName(kDataTypeOf<To>)), ", has ", +value));
    }
    const To element = static_cast<To>(value);
    std::memcpy(into, &element, sizeof(element));
    into += sizeof(element);
  }
  return made;
}

template <typename To>
absl::StatusOr<HostTensor> CastInteger(HostTensor tensor) {
  switch (tensor.header().type) {
    case DataType::kUint8:
      return Cast<To, uint8_t>(tensor);
    case DataType::kInt8:
      return Cast<To, int8_t>(tensor);
    case DataType::kInt16:
      return Cast<To, int16_t>(tensor);
    case DataType::kUint16:
      return Cast<To, uint16_t>(tensor);
    case DataType::kInt32:
      return Cast<To, int32_t>(tensor);
    case DataType::kUint32:
      return Cast<To, uint32_t>(tensor);
    case DataType::kInt64:
      return Cast<To, int64_t>(tensor);
    case DataType::kUint64:
      return Cast<To, uint64_t>(tensor);
    default:
      return tensor;
  }
}

}  // namespace

absl::StatusOr<HostTensor> CastTo(DataType wanted, HostTensor tensor) {
  if (tensor.header().type == wanted) return tensor;
  switch (wanted) {
    case DataType::kFp32:
      if (tensor.header().type == DataType::kFp64) return Cast<float, double>(tensor);
      return tensor;
    case DataType::kInt64:
      return CastInteger<int64_t>(std::move(tensor));
    case DataType::kInt32:
      return CastInteger<int32_t>(std::move(tensor));
    default:
      return tensor;
  }
}

}  // namespace penstock
