#include "engine/wire/chunker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/checksum.h"

namespace penstock {
namespace {

absl::Status BadChunk(std::string_view field, std::string_view problem, int64_t value) {
  const std::string text = absl::StrCat(value);
  return Error(absl::StatusCode::kInvalidArgument, "CHUNK_SIZE",
               std::string(field) + ": " + std::string(problem) + ", got " + text)
      .With("field", field)
      .With("value", text);
}

}  // namespace

absl::StatusOr<int64_t> CheckedChunkBytes(int64_t requested, std::string_view field) {
  if (requested == 0) return kDefaultChunkBytes;
  if (requested < kMinimumChunkBytes || requested > kMaximumChunkBytes) {
    return BadChunk(field, absl::StrCat("must be 0 or from ", kMinimumChunkBytes, " to ", kMaximumChunkBytes),
                    requested);
  }
  return requested;
}

absl::StatusOr<ByteRange> CheckedRange(int64_t offset, int64_t limit, int64_t size) {
  if (offset < 0) return InvalidField("offset", "must not be negative", absl::StrCat(offset));
  if (limit < 0) return InvalidField("limit", "must not be negative", absl::StrCat(limit));
  if (offset > size) {
    return Error(absl::StatusCode::kOutOfRange, "OFFSET_OUT_OF_RANGE",
                 absl::StrCat("offset: must not be past the end at ", size, ", got ", offset))
        .With("field", "offset")
        .With("value", absl::StrCat(offset));
  }
  const int64_t rest = size - offset;
  return ByteRange{offset, offset + (limit == 0 ? rest : std::min(limit, rest))};
}

Chunker::Chunker(std::string_view tensor, int64_t chunk_bytes, ByteRange range)
    : tensor_(tensor), chunk_bytes_(chunk_bytes), end_(range.end), next_(range.begin) {
  PENSTOCK_CHECK(chunk_bytes >= kMinimumChunkBytes && chunk_bytes <= kMaximumChunkBytes);
  PENSTOCK_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= static_cast<int64_t>(tensor.size()));
}

std::optional<Chunk> Chunker::Next() {
  if (next_ == end_) return std::nullopt;
  Chunk chunk;
  chunk.offset = next_;
  chunk.bytes = tensor_.substr(next_, std::min(chunk_bytes_, end_ - next_));
  chunk.checksum = Crc32c(chunk.bytes);
  next_ += static_cast<int64_t>(chunk.bytes.size());
  return chunk;
}

ChunkAssembler::ChunkAssembler(char* buffer, int64_t byte_size, std::string field)
    : buffer_(buffer), byte_size_(byte_size), field_(std::move(field)) {
  PENSTOCK_CHECK(byte_size >= 0);
  PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(buffer) % kPayloadAlignment == 0);
}

absl::Status ChunkAssembler::CheckPlace(int64_t offset, int64_t size) const {
  if (offset != next_) return BadChunk(field_ + ".offset", absl::StrCat("must be ", next_), offset);
  if (size > byte_size_ - next_) {
    return BadChunk(field_ + ".data", absl::StrCat("must end at the declared ", byte_size_, " bytes"), offset + size);
  }
  if (size > kMaximumChunkBytes) {
    return BadChunk(field_ + ".data", absl::StrCat("must have at most ", kMaximumChunkBytes, " bytes"), size);
  }
  const bool last = next_ + size == byte_size_;
  if (size < kMinimumChunkBytes && !last) {
    return BadChunk(field_ + ".data",
                    absl::StrCat("must have at least ", kMinimumChunkBytes, " bytes unless it is the last"), size);
  }
  if (size == 0 && byte_size_ != 0) return BadChunk(field_ + ".data", "must not be empty", size);
  return absl::OkStatus();
}

absl::Status ChunkAssembler::Add(int64_t offset, std::string_view bytes, std::optional<uint32_t> checksum) {
  return AddPieces(offset, {bytes}, checksum);
}

absl::Status ChunkAssembler::AddPieces(int64_t offset, const std::vector<std::string_view>& pieces,
                                       std::optional<uint32_t> checksum) {
  int64_t size = 0;
  for (std::string_view piece : pieces) size += static_cast<int64_t>(piece.size());
  PENSTOCK_RETURN_IF_ERROR(CheckPlace(offset, size));
  uint32_t computed = 0;
  char* to = buffer_ + next_;
  for (std::string_view piece : pieces) {
    if (checksum.has_value()) {
      computed = CopyAndExtendCrc32c(computed, piece, to);
    } else if (!piece.empty()) {
      std::memcpy(to, piece.data(), piece.size());
    }
    to += piece.size();
  }
  if (checksum.has_value() && computed != *checksum) {
    return Error(absl::StatusCode::kDataLoss, "CHUNK_CHECKSUM",
                 absl::StrCat(field_, ".crc32c: must be ", computed, " for these bytes, got ", *checksum))
        .With("field", field_ + ".crc32c")
        .With("value", absl::StrCat(*checksum))
        .With("offset", absl::StrCat(offset));
  }
  next_ += size;
  return absl::OkStatus();
}

absl::Status ChunkAssembler::Finish() const {
  if (complete()) return absl::OkStatus();
  return BadChunk(field_, absl::StrCat("the declared ", byte_size_, " bytes must have arrived"), next_);
}

}  // namespace penstock
