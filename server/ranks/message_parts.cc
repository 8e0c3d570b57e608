#include "server/ranks/message_parts.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/rank_message.h"
#include "engine/tensor/codec.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

constexpr size_t kPartBytes = 256 << 10;
constexpr int64_t kMaxHeadBytes = int64_t{64} << 20;

// Cuts bytes into parts as they come.
class PartWriter {
 public:
  explicit PartWriter(int64_t head_bytes) { parts_.push_back({.head_bytes = head_bytes}); }

  void Put(std::string_view bytes) {
    while (!bytes.empty()) {
      if (parts_.back().data.size() == kPartBytes) parts_.emplace_back();
      std::string& data = parts_.back().data;
      const size_t taken = std::min(bytes.size(), kPartBytes - data.size());
      data.append(bytes.substr(0, taken));
      bytes.remove_prefix(taken);
    }
  }

  std::vector<MessagePart> Take() {
    parts_.back().last = true;
    return std::move(parts_);
  }

 private:
  std::vector<MessagePart> parts_;
};

}  // namespace

absl::Status BadParts(const std::string& problem, const std::string& value) {
  return BadRankMessage("part", problem, value);
}

absl::Status CheckHeadBytes(int64_t head_bytes) {
  if (head_bytes > 0 && head_bytes <= kMaxHeadBytes) return absl::OkStatus();
  return BadRankMessage("part.head_bytes", absl::StrCat("must lie in [1, ", kMaxHeadBytes, "]"),
                        absl::StrCat(head_bytes));
}

absl::Status ListTensor(const std::string& name, const at::Tensor& tensor, TensorHeaders* headers) {
  TensorHeader header{.name = name};
  if (tensor.defined()) {
    PENSTOCK_ASSIGN_OR_RETURN(header, HeaderOf(name, tensor));
  }
  *headers->Add() = ToProto(header);
  return absl::OkStatus();
}

std::vector<MessagePart> ToParts(const google::protobuf::MessageLite& message, const Tensors& tensors) {
  const std::string head = message.SerializeAsString();
  PartWriter writer(static_cast<int64_t>(head.size()));
  writer.Put(head);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) writer.Put(BytesOf(tensor));
  }
  return writer.Take();
}

absl::Status ArrivingTensors::Expect(const TensorHeaders& headers, int64_t most_bytes) {
  int64_t left = most_bytes;
  for (const v1::TensorHeader& message : headers) {
    TensorHeader header = FromProto(message);
    if (header.type != DataType::kUnspecified) {
      PENSTOCK_ASSIGN_OR_RETURN(const int64_t bytes, PayloadBytes(header.type, header.shape, "tensors"));
      if (bytes != header.byte_size || !IsKnown(header.type)) {
        return BadRankMessage("tensors.byte_size", absl::StrCat("must be ", bytes, " for ", header.name),
                              absl::StrCat(header.byte_size));
      }
      if (bytes > left) {
        return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY",
                     absl::StrCat("the tensors of a rank's message need ", bytes - left, " bytes more than the ",
                                  most_bytes, " that there are, with ", header.name))
            .With("bytes", absl::StrCat(bytes));
      }
      left -= bytes;
    }
    headers_.push_back(std::move(header));
  }
  return Begin();
}

absl::Status ArrivingTensors::Begin() {
  filled_ = 0;
  for (; next_ < headers_.size(); ++next_) {
    const TensorHeader& header = headers_[next_];
    at::Tensor tensor;
    if (header.type != DataType::kUnspecified) {
      PENSTOCK_ASSIGN_OR_RETURN(tensor, AllocateTensor(header));
    }
    tensors_.push_back({header.name, std::move(tensor)});
    if (header.type != DataType::kUnspecified && header.byte_size > 0) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status ArrivingTensors::Take(std::string_view bytes) {
  while (!bytes.empty()) {
    if (complete()) return BadParts("has bytes behind its last tensor", absl::StrCat(bytes.size()));
    const int64_t missing = headers_[next_].byte_size - filled_;
    const size_t taken = std::min(bytes.size(), static_cast<size_t>(missing));
    std::memcpy(MutableBytesOf(tensors_.back().tensor) + filled_, bytes.data(), taken);
    bytes.remove_prefix(taken);
    filled_ += static_cast<int64_t>(taken);
    if (filled_ < headers_[next_].byte_size) continue;
    PENSTOCK_RETURN_IF_ERROR(CheckElements(tensors_.back().tensor, headers_[next_].name));
    ++next_;
    PENSTOCK_RETURN_IF_ERROR(Begin());
  }
  return absl::OkStatus();
}

}  // namespace penstock
