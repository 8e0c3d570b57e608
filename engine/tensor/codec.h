#pragma once

// Between a tensor on the wire (a header and bytes) and a tensor of LibTorch.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

// The element types of both sides; nothing where one has no like of the other.
std::optional<at::ScalarType> ToScalarType(DataType type);
std::optional<DataType> ToDataType(at::ScalarType type);

// What the wire says of a tensor.
//
// Fails:     INVALID_ARGUMENT / TENSOR_SIGNATURE naming the tensor, whose type the wire does not have.
absl::StatusOr<TensorHeader> HeaderOf(std::string name, const at::Tensor& tensor);

// A tensor of the header's type and shape with elements not yet set: contiguous, 64-byte aligned.
// The header must have been validated; this is where memory is first taken.
//
// Fails:     RESOURCE_EXHAUSTED / HOST_MEMORY; INVALID_ARGUMENT / TENSOR_HEADER for a header without a type.
absl::StatusOr<at::Tensor> AllocateTensor(const TensorHeader& header);

// The bytes of a contiguous tensor, to read or to fill. The tensor keeps them alive.
std::string_view BytesOf(const at::Tensor& tensor);
char* MutableBytesOf(const at::Tensor& tensor);

// Checks what arrived in a tensor from AllocateTensor: a BOOL must be 0 or 1. `field` names the tensor.
//
// Fails:     INVALID_ARGUMENT / TENSOR_HEADER naming the field and the first bad value.
absl::Status CheckElements(const at::Tensor& tensor, std::string_view field);

// A tensor with a copy of the bytes, which lie in one or several pieces and fill it exactly.
//
// Fails:     as ValidateTensorHeader, AllocateTensor and CheckElements.
absl::StatusOr<at::Tensor> DecodeTensor(const TensorHeader& header, const std::vector<std::string_view>& pieces,
                                        std::string_view field, const WireLimits& limits = {});

// The tensor itself if its bytes can be sent as they are, else a contiguous copy on the CPU.
absl::StatusOr<at::Tensor> SendableTensor(const at::Tensor& tensor);

}  // namespace penstock
