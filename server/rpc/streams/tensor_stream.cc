#include "server/rpc/streams/tensor_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/codec.h"
#include "penstock/v1/handle.pb.h"
#include "server/rpc/convert/tensor_slice.h"

namespace penstock {
namespace {

constexpr uint32_t kChunkField = 2;  // of the response messages
constexpr uint32_t kDataField = v1::TensorChunk::kDataFieldNumber;
constexpr int kMaxChunkFields = 16;

std::string ChecksumField(uint32_t checksum) {
  WireField field;
  field.number = v1::TensorChunk::kCrc32CFieldNumber;
  field.type = 5;
  field.value = checksum;
  std::string bytes;
  AppendField(field, &bytes);
  return bytes;
}

absl::Status OutOfTurn(int expected, int got) {
  return Error(absl::StatusCode::kInvalidArgument, "CHUNK_SIZE",
               absl::StrCat("chunk.tensor: must be ", expected, ", the next one, got ", got))
      .With("field", "chunk.tensor")
      .With("value", absl::StrCat(got));
}

}  // namespace

TensorSender::TensorSender(std::vector<Part> parts, int64_t chunk_bytes)
    : parts_(std::move(parts)), chunk_bytes_(chunk_bytes) {}

std::optional<grpc::ByteBuffer> TensorSender::Next() {
  while (part_ < parts_.size()) {
    const Part& part = parts_[part_];
    if (!chunker_.has_value()) chunker_.emplace(BytesOf(part.tensor), chunk_bytes_, part.range);
    const std::optional<Chunk> chunk = chunker_->Next();
    if (!chunk.has_value()) {
      chunker_.reset();
      ++part_;
      continue;
    }
    v1::TensorChunk front;
    front.set_tensor(part.index);
    front.set_offset(chunk->offset);
    std::string inner = front.SerializeAsString() + BytesFieldPrefix(kDataField, chunk->bytes.size());
    const std::string tail = ChecksumField(chunk->checksum);
    const std::string outer = BytesFieldPrefix(kChunkField, inner.size() + chunk->bytes.size() + tail.size());
    const grpc::Slice slices[] = {grpc::Slice(outer + inner), ShareBytes(part.tensor, chunk->bytes), grpc::Slice(tail)};
    return grpc::ByteBuffer(slices, 3);
  }
  return std::nullopt;
}

absl::Status TensorReceiver::Advance() {
  while (!complete()) {
    if (!assembler_.has_value()) {
      PENSTOCK_ASSIGN_OR_RETURN(at::Tensor tensor, AllocateTensor(headers_[next_]));
      assembler_.emplace(MutableBytesOf(tensor), headers_[next_].byte_size);
      tensors_.push_back({headers_[next_].name, std::move(tensor)});
    }
    if (!assembler_->complete()) return absl::OkStatus();
    PENSTOCK_RETURN_IF_ERROR(CheckElements(tensors_.back().tensor, absl::StrCat("tensors[", next_, "]")));
    assembler_.reset();
    ++next_;
  }
  return absl::OkStatus();
}

absl::Status TensorReceiver::Add(int tensor, int64_t offset, const Pieces& bytes, uint32_t checksum) {
  PENSTOCK_CHECK(!complete() && assembler_.has_value());
  if (tensor != next_tensor()) return OutOfTurn(next_tensor(), tensor);
  PENSTOCK_RETURN_IF_ERROR(assembler_->AddPieces(offset, bytes, checksum));
  received_bytes_ += static_cast<int64_t>(PiecesSize(bytes));
  return Advance();
}

NamedTensors TensorReceiver::Take() {
  PENSTOCK_CHECK(complete());
  return std::move(tensors_);
}

absl::StatusOr<ChunkMessage> ReadChunk(const Pieces& message) {
  ChunkMessage chunk;
  WireReader reader(message);
  for (int fields = 0; !reader.AtEnd(); ++fields) {
    if (fields == kMaxChunkFields) {
      return Error(absl::StatusCode::kInvalidArgument, "STREAM_PROTOCOL",
                   absl::StrCat("chunk: must have at most ", kMaxChunkFields, " fields, got more"))
          .With("field", "chunk")
          .With("value", "more");
    }
    PENSTOCK_ASSIGN_OR_RETURN(WireField field, reader.Next());
    if (field.number == v1::TensorChunk::kTensorFieldNumber && field.type == 0) {
      chunk.tensor = static_cast<int>(field.value);
    } else if (field.number == v1::TensorChunk::kOffsetFieldNumber && field.type == 0) {
      chunk.offset = static_cast<int64_t>(field.value);
    } else if (field.number == kDataField && field.type == 2) {
      chunk.data = std::move(field.bytes);
    } else if (field.number == v1::TensorChunk::kCrc32CFieldNumber && field.type == 5) {
      chunk.checksum = static_cast<uint32_t>(field.value);
    }
  }
  return chunk;
}

}  // namespace penstock
