#include "server/peer/transfer_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/support/slice.h"

namespace penstock::testing {
namespace {

Piece Share(const std::shared_ptr<std::string>& bytes) {
  return {.data = bytes->data(), .bytes = static_cast<int64_t>(bytes->size()), .owner = bytes};
}

std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// The same message, in slices of so many bytes.
grpc::ByteBuffer Cut(const std::string& text, size_t bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < text.size(); at += bytes) {
    slices.emplace_back(text.data() + at, std::min(bytes, text.size() - at));
  }
  return {slices.data(), slices.size()};
}

TEST(TransferMessages, AChunkIsWhatTheGeneratedClassReads) {
  const auto first = std::make_shared<std::string>(300, 'a');
  const auto second = std::make_shared<std::string>("bc");
  peer::v1::TransferRequest request;
  ASSERT_TRUE(request.ParseFromString(TextOf(MakeChunk({Share(first), Share(second)}))));
  EXPECT_EQ(request.chunk(), *first + *second);
}

TEST(TransferMessages, AChunkSharesItsPiecesAndKeepsThemUntilItGoes) {
  auto bytes = std::make_shared<std::string>(1000, 'a');
  const char* const data = bytes->data();
  const std::weak_ptr<std::string> kept = bytes;
  {
    const grpc::ByteBuffer chunk = MakeChunk({Share(std::exchange(bytes, nullptr))});
    EXPECT_FALSE(kept.expired());
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(chunk.Dump(&slices).ok());
    EXPECT_EQ(reinterpret_cast<const char*>(slices.back().begin()), data);
  }
  EXPECT_TRUE(kept.expired());
}

TEST(TransferMessages, ReadingDoesNotDependOnWhereTheBytesAreCut) {
  const auto bytes = std::make_shared<std::string>("0123456789");
  const std::string chunk = TextOf(MakeChunk({Share(bytes)}));
  const std::string frame = TextOf(MakeFrame("header", 77));
  for (size_t cut = 1; cut <= chunk.size(); ++cut) {
    grpc::ByteBuffer message = Cut(chunk, cut);
    TransferReader reader(&message);
    ASSERT_TRUE(reader.is_chunk()) << cut;
    ASSERT_EQ(reader.chunk_bytes(), 10);
    std::string got(10, '\0');
    ASSERT_TRUE(reader.ReadChunk(got.data(), 4) && reader.ReadChunk(got.data() + 4, 6)) << cut;
    EXPECT_EQ(got, *bytes);
    EXPECT_FALSE(reader.ReadChunk(got.data(), 1));

    grpc::ByteBuffer other = Cut(frame, cut);
    TransferReader whole(&other);
    peer::v1::TransferRequest request;
    ASSERT_FALSE(whole.is_chunk());
    ASSERT_TRUE(whole.Parse(&request)) << cut;
    EXPECT_EQ(request.frame().header(), "header");
    EXPECT_EQ(request.frame().payload_bytes(), 77);
  }
}

}  // namespace
}  // namespace penstock::testing
