#include "engine/wire/chunker.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/wire/checksum.h"

namespace penstock {
namespace {

constexpr int64_t kKiB = 1024;

std::string RandomPayload(size_t size) {
  std::mt19937_64 random(size);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// A buffer as the receiver gives it.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t size)
      : size_(size), bytes_(static_cast<char*>(::operator new (size + 1, std::align_val_t{kPayloadAlignment}))) {}
  ~AlignedBuffer() { ::operator delete (bytes_, std::align_val_t{kPayloadAlignment}); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  char* data() { return bytes_; }
  std::string_view view() const { return {bytes_, size_}; }

 private:
  const size_t size_;
  char* const bytes_;
};

void ExpectRefused(const absl::Status& status, std::string_view reason, std::string_view field,
                   std::string_view value) {
  EXPECT_EQ(ReasonOf(status), reason) << status;
  EXPECT_EQ(ValuesOf(status)["field"], field) << status;
  EXPECT_EQ(ValuesOf(status)["value"], value) << status;
}

TEST(ChunkSize, KeepsToItsLimits) {
  EXPECT_EQ(*CheckedChunkBytes(0), 256 * kKiB);
  EXPECT_EQ(*CheckedChunkBytes(64 * kKiB), 64 * kKiB);
  EXPECT_EQ(*CheckedChunkBytes(1024 * kKiB), 1024 * kKiB);
  for (int64_t bad : {int64_t{-1}, int64_t{1}, 64 * kKiB - 1, 1024 * kKiB + 1, std::numeric_limits<int64_t>::max()}) {
    ExpectRefused(CheckedChunkBytes(bad).status(), "CHUNK_SIZE", "chunk_size", std::to_string(bad));
  }
}

TEST(Range, EndsAtTheTensorAndNeverWraps) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(*CheckedRange(0, 0, 10), (ByteRange{0, 10}));
  EXPECT_EQ(*CheckedRange(3, 4, 10), (ByteRange{3, 7}));
  EXPECT_EQ(*CheckedRange(3, 40, 10), (ByteRange{3, 10}));
  EXPECT_EQ(*CheckedRange(3, kMax, 10), (ByteRange{3, 10}));
  EXPECT_EQ(*CheckedRange(10, 0, 10), (ByteRange{10, 10}));
  EXPECT_EQ(*CheckedRange(0, 0, 0), (ByteRange{0, 0}));
  ExpectRefused(CheckedRange(11, 0, 10).status(), "OFFSET_OUT_OF_RANGE", "offset", "11");
  ExpectRefused(CheckedRange(kMax, kMax, 10).status(), "OFFSET_OUT_OF_RANGE", "offset", std::to_string(kMax));
  ExpectRefused(CheckedRange(-1, 0, 10).status(), "FIELD_INVALID", "offset", "-1");
  ExpectRefused(CheckedRange(0, -1, 10).status(), "FIELD_INVALID", "limit", "-1");
}

TEST(Chunker, CutsAtTheChunkSizeAndLeavesTheRestToTheLast) {
  const std::string tensor = RandomPayload(200 * kKiB + 1);
  Chunker chunker(tensor, 100 * kKiB, {0, static_cast<int64_t>(tensor.size())});
  std::vector<int64_t> offsets, sizes;
  std::string joined;
  while (std::optional<Chunk> chunk = chunker.Next()) {
    offsets.push_back(chunk->offset);
    sizes.push_back(static_cast<int64_t>(chunk->bytes.size()));
    EXPECT_EQ(chunk->checksum, Crc32c(chunk->bytes));
    joined += chunk->bytes;
  }
  EXPECT_EQ(offsets, (std::vector<int64_t>{0, 100 * kKiB, 200 * kKiB}));
  EXPECT_EQ(sizes, (std::vector<int64_t>{100 * kKiB, 100 * kKiB, 1}));
  EXPECT_EQ(joined, tensor);
}

TEST(Chunker, GivesNoChunkOfAnEmptyRange) {
  EXPECT_FALSE(Chunker("").Next().has_value());
  EXPECT_FALSE(Chunker("abc", kDefaultChunkBytes, {3, 3}).Next().has_value());
}

TEST(Chunker, GivesOffsetsFromTheStartOfTheTensorWhenItResumes) {
  const std::string tensor = RandomPayload(300 * kKiB);
  Chunker chunker(tensor, 64 * kKiB, *CheckedRange(200 * kKiB, 70 * kKiB, 300 * kKiB));
  const Chunk first = *chunker.Next();
  EXPECT_EQ(first.offset, 200 * kKiB);
  EXPECT_EQ(first.bytes, std::string_view(tensor).substr(200 * kKiB, 64 * kKiB));
  const Chunk second = *chunker.Next();
  EXPECT_EQ(second.offset, 264 * kKiB);
  EXPECT_EQ(second.bytes.size(), 6 * kKiB);
  EXPECT_FALSE(chunker.Next().has_value());
}

TEST(ChunkAssembler, JoinsWhatTheChunkerCut) {
  for (int64_t size : {int64_t{0}, int64_t{1}, 64 * kKiB, 64 * kKiB + 1, 700 * kKiB + 13}) {
    const std::string tensor = RandomPayload(size);
    AlignedBuffer buffer(size);
    ChunkAssembler assembler(buffer.data(), size);
    Chunker chunker(tensor, 64 * kKiB, {0, size});
    while (std::optional<Chunk> chunk = chunker.Next()) {
      ASSERT_FALSE(assembler.complete());
      ASSERT_TRUE(assembler.Add(chunk->offset, chunk->bytes, chunk->checksum).ok());
    }
    EXPECT_TRUE(assembler.complete()) << size;
    EXPECT_TRUE(assembler.Finish().ok());
    EXPECT_EQ(buffer.view(), tensor) << size;
  }
}

TEST(ChunkAssembler, TakesAChunkInPiecesCutAnywhere) {
  const std::string tensor = RandomPayload(1000);
  for (size_t first = 0; first <= tensor.size(); first += 97) {
    for (size_t second = first; second <= tensor.size(); second += 113) {
      const std::string_view view = tensor;
      AlignedBuffer buffer(tensor.size());
      ChunkAssembler assembler(buffer.data(), static_cast<int64_t>(tensor.size()));
      ASSERT_TRUE(assembler
                      .AddPieces(0, {view.substr(0, first), view.substr(first, second - first), view.substr(second)},
                                 Crc32c(tensor))
                      .ok());
      EXPECT_EQ(buffer.view(), tensor);
    }
  }
}

class BadChunk : public ::testing::Test {
 protected:
  static constexpr int64_t kSize = 200 * kKiB;

  // The state must be as before each refusal: the good chunk still fits.
  void ExpectStillUsable() {
    EXPECT_EQ(assembler_.next_offset(), 64 * kKiB);
    const std::string_view rest = std::string_view(tensor_).substr(64 * kKiB);
    EXPECT_TRUE(assembler_.Add(64 * kKiB, rest, Crc32c(rest)).ok());
    EXPECT_TRUE(assembler_.complete());
    EXPECT_EQ(buffer_.view(), tensor_);
  }

  void SetUp() override {
    ASSERT_TRUE(assembler_.Add(0, std::string_view(tensor_).substr(0, 64 * kKiB), std::nullopt).ok());
  }

  const std::string tensor_ = RandomPayload(kSize);
  const std::string filler_ = std::string(2048 * kKiB, 'x');
  AlignedBuffer buffer_{kSize};
  ChunkAssembler assembler_{buffer_.data(), kSize};
};

TEST_F(BadChunk, AGapIsRefused) {
  ExpectRefused(assembler_.Add(65 * kKiB, "x", std::nullopt), "CHUNK_SIZE", "chunk.offset", std::to_string(65 * kKiB));
  ExpectStillUsable();
}

TEST_F(BadChunk, AnOverlapIsRefused) {
  ExpectRefused(assembler_.Add(0, "x", std::nullopt), "CHUNK_SIZE", "chunk.offset", "0");
  ExpectRefused(assembler_.Add(-1, "x", std::nullopt), "CHUNK_SIZE", "chunk.offset", "-1");
  ExpectStillUsable();
}

TEST_F(BadChunk, OneByteTooMuchIsRefused) {
  const std::string_view bytes = std::string_view(filler_).substr(0, kSize - 64 * kKiB + 1);
  ExpectRefused(assembler_.Add(64 * kKiB, bytes, std::nullopt), "CHUNK_SIZE", "chunk.data", std::to_string(kSize + 1));
  ExpectStillUsable();
}

TEST_F(BadChunk, ASmallChunkBeforeTheLastIsRefused) {
  for (int64_t size : {int64_t{0}, int64_t{1}, 64 * kKiB - 1}) {
    ExpectRefused(assembler_.Add(64 * kKiB, std::string_view(filler_).substr(0, size), std::nullopt), "CHUNK_SIZE",
                  "chunk.data", std::to_string(size));
  }
  ExpectStillUsable();
}

TEST_F(BadChunk, DamagedBytesAreRefusedAndMayBeSentAgain) {
  const std::string_view rest = std::string_view(tensor_).substr(64 * kKiB);
  const absl::Status status = assembler_.Add(64 * kKiB, std::string(rest.size(), 'y'), Crc32c(rest));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  ExpectRefused(status, "CHUNK_CHECKSUM", "chunk.crc32c", std::to_string(Crc32c(rest)));
  ExpectStillUsable();
}

TEST_F(BadChunk, AnEarlyEndIsNoticed) {
  ExpectRefused(assembler_.Finish(), "CHUNK_SIZE", "chunk", std::to_string(64 * kKiB));
  ExpectStillUsable();
  EXPECT_TRUE(assembler_.Finish().ok());
}

TEST(ChunkAssembler, RefusesAChunkAboveTheLargestSize) {
  const int64_t size = 2048 * kKiB;
  AlignedBuffer buffer(size);
  ChunkAssembler assembler(buffer.data(), size, "parts[3]");
  const std::string bytes(1024 * kKiB + 1, 'x');
  ExpectRefused(assembler.Add(0, bytes, std::nullopt), "CHUNK_SIZE", "parts[3].data", std::to_string(bytes.size()));
  EXPECT_TRUE(assembler.Add(0, std::string_view(bytes).substr(1), std::nullopt).ok());
}

TEST(ChunkAssembler, RefusesBytesOfAnEmptyTensor) {
  AlignedBuffer buffer(0);
  ChunkAssembler assembler(buffer.data(), 0);
  EXPECT_TRUE(assembler.complete());
  EXPECT_TRUE(assembler.Add(0, "", std::nullopt).ok());
  ExpectRefused(assembler.Add(0, "x", std::nullopt), "CHUNK_SIZE", "chunk.data", "1");
}

}  // namespace
}  // namespace penstock
