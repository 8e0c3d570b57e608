#pragma once

// A tensor in the client's memory.

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/wire/tensor_header.h"
#include "penstock/v1/tensor.pb.h"

namespace penstock {

// The wire's element type of a C++ type.
template <typename T>
inline constexpr DataType kDataTypeOf = DataType::kUnspecified;
template <>
inline constexpr DataType kDataTypeOf<bool> = DataType::kBool;
template <>
inline constexpr DataType kDataTypeOf<uint8_t> = DataType::kUint8;
template <>
inline constexpr DataType kDataTypeOf<int8_t> = DataType::kInt8;
template <>
inline constexpr DataType kDataTypeOf<int16_t> = DataType::kInt16;
template <>
inline constexpr DataType kDataTypeOf<uint16_t> = DataType::kUint16;
template <>
inline constexpr DataType kDataTypeOf<float> = DataType::kFp32;
template <>
inline constexpr DataType kDataTypeOf<int32_t> = DataType::kInt32;
template <>
inline constexpr DataType kDataTypeOf<uint32_t> = DataType::kUint32;
template <>
inline constexpr DataType kDataTypeOf<double> = DataType::kFp64;
template <>
inline constexpr DataType kDataTypeOf<int64_t> = DataType::kInt64;
template <>
inline constexpr DataType kDataTypeOf<uint64_t> = DataType::kUint64;

// Holds a tensor's header and its bytes: row-major, contiguous, little-endian.
//
// Model:     the header's byte_size always equals the bytes held.
// Owns:      its bytes, 64-byte aligned. Moves are cheap; copies are explicit, by ToMessage() and FromMessage().
// Threads:   as any value: reads from any thread, writes from one.
// Fails:     INVALID_ARGUMENT / TENSOR_HEADER for a header that contradicts itself; RESOURCE_EXHAUSTED /
//            TENSOR_TOO_LARGE; INVALID_ARGUMENT / WRONG_TYPE when read as another type.
class HostTensor {
 public:
  HostTensor() = default;

  // Elements are undefined until written. byte_size may be 0: it is computed from type and shape.
  static absl::StatusOr<HostTensor> Allocate(TensorHeader header);

  // Copies values; their count must be the product of the shape.
  template <typename T>
  static absl::StatusOr<HostTensor> FromValues(std::string name, std::vector<int64_t> shape,
                                               std::span<const T> values) {
    static_assert(kDataTypeOf<T> != DataType::kUnspecified);
    return FromBytes({std::move(name), kDataTypeOf<T>, std::move(shape), static_cast<int64_t>(values.size_bytes())},
                     {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }

  static absl::StatusOr<HostTensor> FromBytes(TensorHeader header, std::string_view bytes);
  static absl::StatusOr<HostTensor> FromMessage(const v1::Tensor& message);
  v1::Tensor ToMessage() const;

  static TensorHeader HeaderFromMessage(const v1::TensorHeader& message);
  static v1::TensorHeader HeaderToMessage(const TensorHeader& header);

  const TensorHeader& header() const { return header_; }
  const std::string& name() const { return header_.name; }
  void set_name(std::string name) { header_.name = std::move(name); }

  std::string_view bytes() const { return {bytes_.get(), static_cast<size_t>(header_.byte_size)}; }
  char* mutable_bytes() { return bytes_.get(); }

  // The elements as `T`, which must be the tensor's type.
  template <typename T>
  absl::StatusOr<std::span<const T>> Values() const {
    if (absl::Status right = CheckType(kDataTypeOf<T>); !right.ok()) return right;
    return std::span<const T>(reinterpret_cast<const T*>(bytes_.get()),
                              static_cast<size_t>(header_.byte_size) / sizeof(T));
  }

 private:
  struct Free {
    void operator()(char* bytes) const;
  };
  absl::Status CheckType(DataType wanted) const;

  TensorHeader header_;
  std::unique_ptr<char[], Free> bytes_;
};

}  // namespace penstock
