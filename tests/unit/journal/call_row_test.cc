#include "engine/journal/call_row.h"

#include <gtest/gtest.h>

#include <functional>

#include "engine/base/error.h"
#include "engine/wire/sha256.h"

namespace penstock {
namespace {

CallRow Row() {
  return {.sequence = 7,
          .identity = "ann",
          .method = "TrainStep",
          .request_id = "r",
          .payload_digest = "d",
          .parameters = "p",
          .micro_batches = 4,
          .forward_sequence = 3,
          .accepted_unix_nanos = 9,
          .inputs = {{.header = "x", .bytes = "12", .size = 2}}};
}

TEST(CallRow, EachFieldOfTheAcceptedPartAndTheRowBeforeCountInTheChecksum) {
  const uint32_t whole = AcceptedChecksum(Row(), 1);
  EXPECT_EQ(AcceptedChecksum(Row(), 1), whole);
  EXPECT_NE(AcceptedChecksum(Row(), 2), whole);
  const std::function<void(CallRow&)> changes[] = {
      [](CallRow& row) { ++row.sequence; },
      [](CallRow& row) { row.identity = "bob"; },
      [](CallRow& row) { row.method = "Backward"; },
      [](CallRow& row) { row.request_id = "s"; },
      [](CallRow& row) { row.payload_digest = "e"; },
      [](CallRow& row) { row.parameters = "q"; },
      [](CallRow& row) { ++row.micro_batches; },
      [](CallRow& row) { ++row.forward_sequence; },
      [](CallRow& row) { ++row.accepted_unix_nanos; },
      [](CallRow& row) { row.inputs[0].header = "y"; },
      [](CallRow& row) { row.inputs[0].bytes = "13"; },
      [](CallRow& row) { row.inputs[0].digest = "sha"; },
      [](CallRow& row) { ++row.inputs[0].size; },
      [](CallRow& row) { row.inputs.clear(); },
      // Bytes that move from one field to the next.
      [](CallRow& row) { row.identity = "annT", row.method = "rainStep"; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    CallRow row = Row();
    changes[i](row);
    EXPECT_NE(AcceptedChecksum(row, 1), whole) << "change " << i;
  }
}

TEST(CallRow, AnOutcomeIsBoundToItsCall) {
  const RecordedCall call{.sequence = 7,
                          .identity = "ann",
                          .accepted_checksum = 5,
                          .outcome = {.status = CallStatus::kDone, .draw_base = 1, .run_nanos = 2, .bytes = "loss"}};
  const uint32_t whole = RecordedChecksum(call);
  const std::function<void(RecordedCall&)> changes[] = {
      [](RecordedCall& other) { other.sequence = 8; },
      [](RecordedCall& other) { other.identity = "bob"; },
      [](RecordedCall& other) { other.method = "m"; },
      [](RecordedCall& other) { other.request_id = "r"; },
      [](RecordedCall& other) { other.payload_digest = "d"; },
      [](RecordedCall& other) { other.accepted_checksum = 6; },
      [](RecordedCall& other) { other.outcome.status = CallStatus::kFailed; },
      [](RecordedCall& other) { other.outcome.draw_base = 2; },
      [](RecordedCall& other) { other.outcome.run_nanos = 3; },
      [](RecordedCall& other) { other.outcome.settled_unix_nanos = 1; },
      [](RecordedCall& other) { other.outcome.bytes = "lost"; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    RecordedCall other = call;
    changes[i](other);
    EXPECT_NE(RecordedChecksum(other), whole) << "change " << i;
  }
}

TEST(CallRow, InputsComeBackAsTheyWere) {
  const std::string digest = Sha256::Of("much");
  const std::vector<StoredInput> inputs = {{.header = "a", .bytes = std::string("\0b", 2), .size = 2},
                                           {.header = "", .bytes = "", .size = 0},
                                           {.header = "big", .digest = digest, .size = 1 << 20}};
  const absl::StatusOr<std::vector<StoredInput>> parsed = ParseInputs(FormatInputs(inputs));
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed->size(), 3);
  EXPECT_EQ((*parsed)[0].bytes, inputs[0].bytes);
  EXPECT_FALSE((*parsed)[0].in_file());
  EXPECT_EQ((*parsed)[2].digest, digest);
  EXPECT_EQ((*parsed)[2].size, 1 << 20);
}

TEST(CallRow, InputsThatEndEarlyOrLateAreDamage) {
  const std::string bytes = FormatInputs({{.header = "a", .bytes = "bc", .size = 2}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ReasonOf(ParseInputs(bytes.substr(0, size)).status()), "JOURNAL_CORRUPT") << size;
  }
  EXPECT_EQ(ReasonOf(ParseInputs(bytes + "x").status()), "JOURNAL_CORRUPT");
  EXPECT_EQ(ReasonOf(ParseInputs(FormatInputs({{.bytes = "bc", .size = 3}})).status()), "JOURNAL_CORRUPT");
  EXPECT_EQ(ReasonOf(ParseInputs(FormatInputs({{.digest = "../x", .size = 3}})).status()), "JOURNAL_CORRUPT");
  EXPECT_EQ(ReasonOf(ParseInputs(std::string(8, '\xff')).status()), "JOURNAL_CORRUPT");  // a number below 0
  // Files of more bytes than can be added up.
  const std::string digest = Sha256::Of("x");
  const StoredInput huge = {.digest = digest, .size = int64_t{1} << 60};
  EXPECT_TRUE(ParseInputs(FormatInputs({huge})).ok());
  EXPECT_EQ(ReasonOf(ParseInputs(FormatInputs({huge, {.digest = digest, .size = 1}})).status()), "JOURNAL_CORRUPT");
  EXPECT_EQ(ReasonOf(ParseInputs(FormatInputs({{.digest = digest, .size = INT64_MAX}})).status()), "JOURNAL_CORRUPT");
}

}  // namespace
}  // namespace penstock
