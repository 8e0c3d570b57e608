#include "engine/transport/frame_header.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

FrameHeader Whole() {
  FrameHeader header;
  for (size_t i = 0; i < header.group.key.size(); ++i) header.group.key[i] = static_cast<char>(200 + i);
  header.group.epoch = Epoch(7);
  header.group.generation = 3;
  header.from = Rank(2);
  header.to = Rank(1);
  header.kind = FrameKind::kTaken;
  header.channel = {"big", Epoch(9)};
  header.stream = {.run = 12, .number = int64_t{3} << 48};
  header.payload_bytes = int64_t{1} << 40;
  header.messages = 4;
  header.content = "content";
  return header;
}

TEST(FrameHeader, ComesBack) {
  const std::string bytes = EncodeFrameHeader(Whole());
  const auto header = DecodeFrameHeader(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->group, Whole().group);
  EXPECT_EQ(header->from, Rank(2));
  EXPECT_EQ(header->to, Rank(1));
  EXPECT_EQ(header->kind, FrameKind::kTaken);
  EXPECT_EQ(header->channel, Whole().channel);
  EXPECT_EQ(header->stream, Whole().stream);
  EXPECT_EQ(header->payload_bytes, int64_t{1} << 40);
  EXPECT_EQ(header->messages, 4);
  EXPECT_EQ(header->content, "content");
}

TEST(FrameHeader, EveryShortenedOneIsRefusedWithItsField) {
  FrameHeader header = Whole();
  header.content = {};
  const std::string bytes = EncodeFrameHeader(header);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = DecodeFrameHeader(std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(decoded.ok()) << size;
    EXPECT_EQ(ReasonOf(decoded.status()), "RANK_MESSAGE");
    EXPECT_FALSE(ValuesOf(decoded.status())["field"].empty());
  }
}

TEST(FrameHeader, RefusesWhatNoRankWrites) {
  const auto field = [](const FrameHeader& header) {
    return ValuesOf(DecodeFrameHeader(EncodeFrameHeader(header)).status())["field"];
  };
  FrameHeader header = Whole();
  header.kind = static_cast<FrameKind>(7);
  EXPECT_EQ(field(header), "kind");
  header = Whole();
  header.payload_bytes = -1;
  EXPECT_EQ(field(header), "payload_bytes");
  header = Whole();
  header.messages = -1;
  EXPECT_EQ(field(header), "messages");
  header = Whole();
  header.channel.pipeline = std::string(257, 'p');
  EXPECT_EQ(field(header), "pipeline");
  std::string bytes = EncodeFrameHeader(Whole());
  bytes[0] ^= 1;
  EXPECT_EQ(ValuesOf(DecodeFrameHeader(bytes).status())["field"], "magic");
}

TEST(FrameHeader, ErrorsComeBackWithReasonAndValues) {
  const absl::Status error =
      Error(absl::StatusCode::kInvalidArgument, "RANK_MESSAGE", "kind: must be known, got 9").With("field", "kind");
  const absl::Status back = DecodeError(EncodeError(error));
  EXPECT_EQ(back, error);
  EXPECT_EQ(ReasonOf(DecodeError("")), "RANK_MESSAGE");
  EXPECT_FALSE(DecodeError(std::string(64, '\0')).ok());
}

}  // namespace
}  // namespace penstock
