#pragma once

// Messages of rank.proto with the tensors that they list, as parts of a stream.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/memory_bound.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/named_tensors.h"
#include "engine/wire/tensor_header.h"
#include "google/protobuf/message_lite.h"
#include "google/protobuf/repeated_field.h"
#include "penstock/v1/tensor.pb.h"
#include "server/peer/message_part.h"

namespace penstock {

using TensorHeaders = google::protobuf::RepeatedPtrField<v1::TensorHeader>;

// Adds a tensor to those that a message lists: on the host and contiguous, or undefined.
//
// Fails:     TENSOR_SIGNATURE for a type that the wire does not have.
absl::Status ListTensor(const std::string& name, const at::Tensor& tensor, TensorHeaders* headers);

// The message and the elements of its tensors, in parts that one message of a stream holds. May throw std::bad_alloc.
std::vector<MessagePart> ToParts(const google::protobuf::MessageLite& message, const Tensors& tensors);

// Puts the tensors of one message together as their bytes come.
class ArrivingTensors {
 public:
  // `most_bytes`: of all of them.
  //
  // Fails:     RANK_MESSAGE naming the tensor whose header lies; HOST_MEMORY.
  absl::Status Expect(const TensorHeaders& headers, int64_t most_bytes);
  // Fails:     RANK_MESSAGE for more bytes than were announced; HOST_MEMORY.
  absl::Status Take(std::string_view bytes);
  bool complete() const { return next_ == headers_.size(); }
  NamedTensors Release() { return std::move(tensors_); }

 private:
  absl::Status Begin();  // the next tensor that has elements; those before it are done

  std::vector<TensorHeader> headers_;
  NamedTensors tensors_;
  size_t next_ = 0;     // tensor to be filled
  int64_t filled_ = 0;  // bytes of it
};

// Puts messages together from their parts. Before memory is taken for the tensors of a message they must fit into what
// the process may use, or into `most_bytes`.
//
// Threads:   one at a time.
// Fails:     INVALID_ARGUMENT / RANK_MESSAGE for parts that make no sense; RESOURCE_EXHAUSTED / HOST_MEMORY. Then the
//            stream must be left.
template <typename Message>
class MessageReader {
 public:
  struct Whole {
    Message message;
    NamedTensors tensors;
  };

  explicit MessageReader(int64_t most_bytes = MemoryBoundBytes()) : most_bytes_(most_bytes) {}

  // The message that this part ends, if it does. After a failure, and after an exception, every part fails.
  absl::StatusOr<std::optional<Whole>> Take(const MessagePart& part);

 private:
  absl::StatusOr<std::optional<Whole>> TakePart(const MessagePart& part);

  absl::Status failed_;
  int64_t most_bytes_;
  int64_t head_bytes_ = 0;  // 0: the next part begins a message
  std::string head_;
  bool has_head_ = false;
  Message message_;
  ArrivingTensors tensors_;
};

// The rules that do not depend on the kind of message.
absl::Status CheckHeadBytes(int64_t head_bytes);
absl::Status BadParts(const std::string& problem, const std::string& value);

template <typename Message>
absl::StatusOr<std::optional<typename MessageReader<Message>::Whole>> MessageReader<Message>::Take(
    const MessagePart& part) {
  PENSTOCK_RETURN_IF_ERROR(failed_);
  failed_ = BadParts("follows one that could not be taken", "another part");
  auto taken = TakePart(part);
  failed_ = taken.status();
  return taken;
}

template <typename Message>
absl::StatusOr<std::optional<typename MessageReader<Message>::Whole>> MessageReader<Message>::TakePart(
    const MessagePart& part) {
  if (head_bytes_ == 0) {
    PENSTOCK_RETURN_IF_ERROR(CheckHeadBytes(part.head_bytes));
    head_bytes_ = part.head_bytes;
  } else if (part.head_bytes != 0) {
    return BadParts("begins a message within another one", std::to_string(part.head_bytes));
  }
  std::string_view rest = part.data;
  if (!has_head_) {
    const size_t missing = static_cast<size_t>(head_bytes_) - head_.size();
    head_.append(rest.substr(0, missing));
    rest.remove_prefix(std::min(missing, rest.size()));
    if (head_.size() == static_cast<size_t>(head_bytes_)) {
      if (!message_.ParseFromString(head_)) return BadParts("holds no message", std::to_string(head_bytes_));
      PENSTOCK_RETURN_IF_ERROR(tensors_.Expect(message_.tensors(), most_bytes_));
      has_head_ = true;
    }
  }
  if (!rest.empty()) PENSTOCK_RETURN_IF_ERROR(tensors_.Take(rest));
  if (!part.last) return std::optional<Whole>();
  if (!has_head_ || !tensors_.complete()) return BadParts("ends a message that is not whole", "the last part");
  Whole whole{.message = std::move(message_), .tensors = tensors_.Release()};
  *this = MessageReader(most_bytes_);
  return std::optional<Whole>(std::move(whole));
}

}  // namespace penstock
