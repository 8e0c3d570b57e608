#pragma once

// A tensor's bytes in pieces for a stream: cut by the sender, joined by the receiver.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

inline constexpr int64_t kMinimumChunkBytes = int64_t{64} << 10;  // only the last chunk of a tensor may be smaller
inline constexpr int64_t kDefaultChunkBytes = int64_t{256} << 10;
inline constexpr int64_t kMaximumChunkBytes = int64_t{1} << 20;
inline constexpr int64_t kPayloadAlignment = 64;  // bytes; of buffers that receive a tensor

// The chunk size that a caller asked for: 0 means the default; outside the limits it is INVALID_ARGUMENT / CHUNK_SIZE.
absl::StatusOr<int64_t> CheckedChunkBytes(int64_t requested, std::string_view field = "chunk_size");

// A part of a tensor's bytes: [begin, end).
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const ByteRange&) const = default;
};

// The part of `size` bytes that starts at `offset` and holds at most `limit` bytes; limit 0 means up to the end. An
// offset equal to the size is an empty range. Nothing wraps.
//
// Fails: OUT_OF_RANGE / OFFSET_OUT_OF_RANGE beyond the end; INVALID_ARGUMENT / FIELD_INVALID for negative numbers.
absl::StatusOr<ByteRange> CheckedRange(int64_t offset, int64_t limit, int64_t size);

// A view of one chunk.
struct Chunk {
  int64_t offset = 0;      // from the start of the tensor
  std::string_view bytes;  // points into the tensor
  uint32_t checksum = 0;   // CRC32C of `bytes`
};

// Cuts a tensor's bytes into chunks.
//
// Owns:      nothing; the bytes must outlive the chunker and its chunks.
// Threads:   one.
// Units:     bytes. Every chunk has `chunk_bytes` bytes but the last, which has the rest. An empty range has no chunk.
// Example:   Chunker chunker(bytes, chunk_bytes, *CheckedRange(offset, limit, bytes.size()));
//            while (std::optional<Chunk> chunk = chunker.Next()) Send(*chunk);
class Chunker {
 public:
  // `chunk_bytes` and `range` must have been checked.
  Chunker(std::string_view tensor, int64_t chunk_bytes, ByteRange range);
  explicit Chunker(std::string_view tensor)
      : Chunker(tensor, kDefaultChunkBytes, ByteRange{0, static_cast<int64_t>(tensor.size())}) {}

  // The next chunk, or nothing when all were given.
  std::optional<Chunk> Next();

 private:
  const std::string_view tensor_;
  const int64_t chunk_bytes_;
  const int64_t end_;
  int64_t next_;
};

// Joins the chunks of one tensor in a buffer of the caller.
//
// Model:     the offset that must come next; bytes before it are in the buffer and will not change.
// Owns:      nothing; the buffer is 64-byte aligned, holds `byte_size` bytes and outlives the assembler.
// Threads:   one.
// Lifecycle: Add() until complete(); Finish() tells a stream that ended early from one that did not. A tensor without
//            bytes is complete from the start.
// Fails:     INVALID_ARGUMENT / CHUNK_SIZE for a gap, an overlap, a chunk too small, too large or past the end, and an
//            early end; DATA_LOSS / CHUNK_CHECKSUM for damaged bytes. After an error next_offset() is unchanged: the
//            chunk may be sent again.
class ChunkAssembler {
 public:
  // `field` names the chunk in errors.
  ChunkAssembler(char* buffer, int64_t byte_size, std::string field = "chunk");

  // Copies a chunk to its place. Without a checksum the bytes are taken as they are.
  absl::Status Add(int64_t offset, std::string_view bytes, std::optional<uint32_t> checksum);

  // The same for a chunk that lies in several pieces, as gRPC delivers it; each is copied once.
  absl::Status AddPieces(int64_t offset, const std::vector<std::string_view>& pieces, std::optional<uint32_t> checksum);

  int64_t next_offset() const { return next_; }
  bool complete() const { return next_ == byte_size_; }

  // OK if every byte has arrived.
  absl::Status Finish() const;

 private:
  absl::Status CheckPlace(int64_t offset, int64_t size) const;

  char* const buffer_;
  const int64_t byte_size_;
  const std::string field_;
  int64_t next_ = 0;
};

}  // namespace penstock
