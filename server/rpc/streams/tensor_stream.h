#pragma once

// Tensors on a stream: outwards as chunk messages that share the tensor's memory, inwards into memory
// that was made for them.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tensor/named_tensors.h"
#include "engine/wire/chunker.h"
#include "engine/wire/tensor_header.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/convert/wire_reader.h"

namespace penstock {

inline constexpr int64_t kPutCreditBytes = int64_t{32} << 20;

// Makes the chunk messages of some tensors, one at a time. FetchHandleResponse and
// ReadParametersResponse both hold a TensorChunk in field 2.
//
// Owns:      shares of the tensors, which must be contiguous.
// Threads:   one at a time.
class TensorSender {
 public:
  struct Part {
    int index = 0;  // in the list of headers that the receiver knows
    at::Tensor tensor;
    ByteRange range;
  };

  TensorSender(std::vector<Part> parts, int64_t chunk_bytes);

  // The next message, or nothing when all were given.
  std::optional<grpc::ByteBuffer> Next();

 private:
  const std::vector<Part> parts_;
  const int64_t chunk_bytes_;
  size_t part_ = 0;
  std::optional<Chunker> chunker_;
};

// Receives the chunks of some tensors in order.
//
// Model:     the tensor and offset that must come next; what came before is in memory. A tensor's
//            memory is taken when its turn comes.
// Threads:   one at a time.
// Fails:     as ChunkAssembler and CheckElements; CHUNK_SIZE for a tensor out of turn; HOST_MEMORY.
class TensorReceiver {
 public:
  // The headers must have been validated.
  explicit TensorReceiver(std::vector<TensorHeader> headers) : headers_(std::move(headers)) {}

  // Takes the memory of the first tensor. Once, before Add().
  absl::Status Start() { return Advance(); }
  absl::Status Add(int tensor, int64_t offset, const Pieces& bytes, uint32_t checksum);

  bool complete() const { return next_ == headers_.size(); }
  int next_tensor() const { return static_cast<int>(next_); }
  int64_t next_offset() const { return assembler_.has_value() ? assembler_->next_offset() : 0; }
  int64_t received_bytes() const { return received_bytes_; }
  const std::vector<TensorHeader>& headers() const { return headers_; }
  // All tensors; only when complete.
  NamedTensors Take();

 private:
  // Goes on to the next tensor that has bytes to come.
  absl::Status Advance();

  const std::vector<TensorHeader> headers_;
  NamedTensors tensors_;
  size_t next_ = 0;
  int64_t received_bytes_ = 0;
  std::optional<ChunkAssembler> assembler_;
};

// The fields of a TensorChunk that lies in pieces.
struct ChunkMessage {
  int tensor = 0;
  int64_t offset = 0;
  Pieces data;
  uint32_t checksum = 0;
};

// Reads one; unknown fields are skipped, at most 16. Fails: as WireReader, STREAM_PROTOCOL.
absl::StatusOr<ChunkMessage> ReadChunk(const Pieces& message);

}  // namespace penstock
