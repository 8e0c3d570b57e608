// Messages with tensors, cut into parts and put together again, and parts that lie.

#include "server/ranks/message_parts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "penstock/peer/v1/rank.pb.h"
#include "server/ranks/rank_convert.h"

namespace penstock {
namespace {

OutgoingReport Report() {
  OutgoingReport report;
  report.message().set_pipeline(7);
  EXPECT_TRUE(report.Add("long", at::arange(200'000, at::kDouble).view({1000, 200})).ok());
  EXPECT_TRUE(report.Add("none", at::Tensor()).ok());
  EXPECT_TRUE(report.Add("empty", at::empty({0, 3})).ok());
  EXPECT_TRUE(report.Add("optimizer/block0.weight/step", at::ones({}, at::kLong)).ok());
  return report;
}

TEST(MessageParts, AMessageComesTogetherFromItsParts) {
  const std::vector<MessagePart> parts = Report().ToParts();
  ASSERT_GT(parts.size(), 6u) << "1.6 MB in parts that fit into a message";
  MessageReader<peer::v1::Report> reader;
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < parts.size(); ++i) {
      auto whole = reader.Take(parts[i]);
      ASSERT_TRUE(whole.ok()) << whole.status();
      ASSERT_EQ(whole->has_value(), i + 1 == parts.size());
      if (!whole->has_value()) continue;
      EXPECT_EQ((*whole)->message.pipeline(), 7u);
      const NamedTensors& tensors = (*whole)->tensors;
      ASSERT_EQ(tensors.size(), 4u);
      EXPECT_TRUE(tensors[0].tensor.equal(at::arange(200'000, at::kDouble).view({1000, 200})));
      EXPECT_FALSE(tensors[1].tensor.defined());
      EXPECT_EQ(tensors[2].tensor.sizes(), at::IntArrayRef({0, 3}));
      EXPECT_EQ(tensors[3].name, "optimizer/block0.weight/step");
      EXPECT_EQ(tensors[3].tensor.item<int64_t>(), 1);
    }
  }
}

// How a message ends whose parts were changed.
std::string Refused(std::vector<MessagePart> parts, int64_t most_bytes = int64_t{1} << 30) {
  MessageReader<peer::v1::Report> reader(most_bytes);
  for (const MessagePart& part : parts) {
    const auto whole = reader.Take(part);
    if (!whole.ok()) return ReasonOf(whole.status()) + ": " + std::string(whole.status().message());
    if (whole->has_value()) return "taken";
  }
  return "waits";
}

TEST(MessageParts, PartsThatLieAreRefused) {
  const std::vector<MessagePart> good = Report().ToParts();
  EXPECT_EQ(Refused(good), "taken");

  std::vector<MessagePart> parts = good;
  parts[0].head_bytes = 0;
  EXPECT_EQ(Refused(parts), "RANK_MESSAGE: part.head_bytes: must lie in [1, 67108864], got 0");
  parts[0].head_bytes = int64_t{1} << 40;
  EXPECT_EQ(Refused(parts), "RANK_MESSAGE: part.head_bytes: must lie in [1, 67108864], got 1099511627776");
  parts = good;
  parts[1].head_bytes = 5;
  EXPECT_EQ(Refused(parts), "RANK_MESSAGE: part: begins a message within another one, got 5");
  parts = good;
  parts[0].data[0] = '\xff';
  EXPECT_EQ(Refused(parts).substr(0, 37), "RANK_MESSAGE: part: holds no message,");
  parts = good;
  parts[1].last = true;
  EXPECT_EQ(Refused(parts), "RANK_MESSAGE: part: ends a message that is not whole, got the last part");
  parts = good;
  parts.back().data += "xyz";
  EXPECT_EQ(Refused(parts), "RANK_MESSAGE: part: has bytes behind its last tensor, got 3");
}

TEST(MessageParts, ATensorWhoseSizeIsAnotherIsRefusedBeforeMemoryIsTaken) {
  peer::v1::Report report;
  v1::TensorHeader* header = report.add_tensors();
  header->set_name("huge");
  header->set_type(v1::DATA_TYPE_FP32);
  header->add_shape(int64_t{1} << 60);
  header->set_byte_size(int64_t{1} << 62);
  EXPECT_EQ(Refused(ToParts(report, {})).substr(0, 13), "HOST_MEMORY: ");
  header->set_byte_size(4);
  EXPECT_EQ(Refused(ToParts(report, {})),
            "RANK_MESSAGE: tensors.byte_size: must be 4611686018427387904 for huge, got 4");
  header->set_shape(0, -1);
  EXPECT_NE(Refused(ToParts(report, {})), "taken");
}

TEST(MessageParts, BoolsAreZeroOrOne) {
  OutgoingReport report;
  ASSERT_TRUE(report.Add("mask", at::ones({3}, at::kBool)).ok());
  std::vector<MessagePart> parts = report.ToParts();
  EXPECT_EQ(Refused(parts), "taken");
  parts.back().data.back() = 2;
  EXPECT_EQ(Refused(parts), "TENSOR_HEADER: mask.data: every BOOL must be 0 or 1, got 2");
}

// More parts may be on their way when one is refused.
TEST(MessageParts, NothingIsTakenBehindAPartThatWasRefused) {
  peer::v1::Report report;
  for (const int64_t elements : {int64_t{1}, int64_t{1} << 60}) {
    v1::TensorHeader* header = report.add_tensors();
    header->set_type(v1::DATA_TYPE_FP32);
    header->add_shape(elements);
    header->set_byte_size(4 * elements);
  }
  std::vector<MessagePart> parts = ToParts(report, {});
  parts[0].last = false;
  parts.push_back({.data = std::string(4, 'x')});
  parts.push_back({.data = std::string(1 << 16, 'x')});
  MessageReader<peer::v1::Report> reader(std::numeric_limits<int64_t>::max());
  std::vector<std::string> refused;
  for (const MessagePart& part : parts) refused.push_back(ReasonOf(reader.Take(part).status()));
  EXPECT_THAT(refused, ::testing::ElementsAre("", "HOST_MEMORY", "HOST_MEMORY"));
}

TEST(MessageParts, AllTensorsOfAMessageTogetherFitIntoMemory) {
  constexpr int64_t kBytes = 1'600'000 + 8;  // of the report
  EXPECT_EQ(Refused(Report().ToParts(), kBytes), "taken");
  EXPECT_EQ(Refused(Report().ToParts(), kBytes - 1),
            "HOST_MEMORY: the tensors of a rank's message need 1 bytes more than the 1600007 that there are, with "
            "optimizer/block0.weight/step");
}

}  // namespace
}  // namespace penstock
