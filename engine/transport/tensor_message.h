#pragma once

// A message between stages as bytes: a header that says everything but the elements, and their bytes as they lie.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tensor/batch.h"
#include "engine/transport/carrier.h"
#include "engine/transport/transport.h"

namespace penstock {

// What the plan says of a tensor. A dimension of -1 may have any size.
struct TensorForm {
  at::ScalarType type = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
};

// Judges a message by its key, before the rest is read. Answers with the tensors that it must have, in the order of
// Batch::AllTensors(), undefined ones left out; null where any will do. A message without tensors fits always: gradients
// may be None.
using Admission = std::function<absl::StatusOr<const std::vector<TensorForm>*>(const MessageKey&)>;

struct EncodedMessage {
  std::string header;
  std::vector<Piece> payload;  // of the tensors, in the order of Batch::AllTensors()
};

// The bytes of a message whose tensors are on the host. Strides are kept where the elements lie without gaps, and how
// far they lie behind a boundary of 64 bytes, so that the receiver's operators do the same in the same order: the last
// bit of a product may depend on either. Other tensors are copied first. No graph goes along.
//
// Fails:     INVALID_ARGUMENT / TENSOR_SIGNATURE for a tensor that has no such bytes, RESOURCE_EXHAUSTED /
//            TENSOR_TOO_LARGE for a header beyond `max_header_bytes`; as RunTorch.
absl::StatusOr<EncodedMessage> EncodeTensorMessage(const MessageKey& key, const Batch& values,
                                                   int64_t max_header_bytes = kMaximumFrameHeaderBytes);

struct DecodedMessage {
  MessageKey key;
  Batch values;               // with tensors of the right kind whose elements are not set yet
  std::vector<Piece> places;  // of their elements, for the payload
};

// Reads a header that may say anything. Memory is taken when everything in it was found right, for no more than
// `payload_bytes` in all.
//
// Fails:     INVALID_ARGUMENT / RANK_MESSAGE that names the field, as "values[1].shape", and the value; as `admit`;
//            RESOURCE_EXHAUSTED / HOST_MEMORY.
absl::StatusOr<DecodedMessage> DecodeTensorMessage(std::string_view header, int64_t payload_bytes,
                                                   const Admission& admit = nullptr);

// Checks what has arrived in the places of a message: a bool must be 0 or 1.
absl::Status CheckArrived(const Batch& values);

}  // namespace penstock
