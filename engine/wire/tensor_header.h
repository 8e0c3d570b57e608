#pragma once

// What a tensor on the wire says of itself before its bytes arrive, and the checks that come before any allocation.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// The element types of the wire. The numbers equal those of penstock.v1.DataType, so a number that a client sent may be
// cast to this type before it was checked; ValidateTensorHeader refuses the unknown ones.
enum class DataType : int32_t {
  kUnspecified = 0,
  kBool = 1,
  kUint8 = 2,
  kInt8 = 3,
  kFp16 = 4,
  kBf16 = 5,
  kInt16 = 6,
  kUint16 = 7,
  kFp32 = 8,
  kInt32 = 9,
  kUint32 = 10,
  kFp64 = 11,
  kInt64 = 12,
  kUint64 = 13,
};
inline constexpr int kDataTypeCount = 14;  // kUnspecified included

// True for the thirteen types that a tensor may have.
bool IsKnown(DataType type);

// "FP32", as the Open Inference Protocol spells it; "UNSPECIFIED" for anything unknown.
std::string_view DataTypeName(DataType type);

// The type of a name, or nothing. Names are upper case.
std::optional<DataType> DataTypeFromName(std::string_view name);

// Bytes of one element; 0 for an unknown type.
int64_t ItemSize(DataType type);

// One tensor, row-major, contiguous, little-endian, without padding. A shape of rank 0 is a scalar; a dimension of 0
// makes an empty tensor. Both are legal.
struct TensorHeader {
  std::string name = {};
  DataType type = DataType::kUnspecified;
  std::vector<int64_t> shape = {};
  int64_t byte_size = 0;

  bool operator==(const TensorHeader&) const = default;
};

// What a request may hold. Bytes count payload only.
struct WireLimits {
  int max_rank = 8;
  int max_tensors = 64;
  int max_name_bytes = 128;
  bool allow_empty_name = false;  // true where another field names the tensor
  int64_t max_tensor_bytes = int64_t{1} << 30;
  int64_t max_request_bytes = int64_t{4} << 30;
};

// The number of elements of a shape. Refuses negative dimensions and products above INT64_MAX; a dimension of 0 does
// not hide an overflow of the others. `field` names the tensor, for example "tensors[2]".
absl::StatusOr<int64_t> ElementCount(const std::vector<int64_t>& shape, std::string_view field);

// The payload bytes of a type and shape, with the checks of ElementCount.
absl::StatusOr<int64_t> PayloadBytes(DataType type, const std::vector<int64_t>& shape, std::string_view field);

// Checks one header: name, type, rank, dimensions, product, declared bytes, tensor limit; returns the first fault.
// Names hold printable ASCII characters only.
//
// Fails: INVALID_ARGUMENT / TENSOR_HEADER, RESOURCE_EXHAUSTED / TENSOR_TOO_LARGE; both with values "field" and "value".
absl::Status ValidateTensorHeader(const TensorHeader& header, std::string_view field, const WireLimits& limits = {});

// Checks all headers of a request: their count, each header in order, names that repeat, the sum of the bytes. Tensor i
// is called "FIELD[i]" in errors, for example "tensors[2].shape[1]".
absl::Status ValidateTensorHeaders(const std::vector<TensorHeader>& headers, std::string_view field = "tensors",
                                   const WireLimits& limits = {});

// A client's text or value as errors may show it: printable, at most 64 bytes.
std::string Shortened(std::string_view text);

}  // namespace penstock
