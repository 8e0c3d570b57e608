#include "engine/base/error.h"

#include <string>

#include "engine/base/rank_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ErrorTest, CarriesCodeReasonMessageAndNamedValues) {
  const absl::Status status =
      Error(absl::StatusCode::kNotFound, "HANDLE_EXPIRED", "handle has expired").With("handle", "h-1").With("age", "3");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "handle has expired");
  EXPECT_EQ(ReasonOf(status), "HANDLE_EXPIRED");
  EXPECT_THAT(ValuesOf(status), ElementsAre(Pair("age", "3"), Pair("handle", "h-1")));
}

TEST(ErrorTest, ALaterValueReplacesTheEarlierOneOfTheSameName) {
  Error error(absl::StatusCode::kInternal, "INTERNAL", "broken");
  error.With("stage", "0");
  error.With("stage", "1");
  EXPECT_THAT(ValuesOf(error), ElementsAre(Pair("stage", "1")));
}

TEST(ErrorTest, AnErrorThatIsStillInUseConvertsWithoutLosingItsValues) {
  const Error error = Error(absl::StatusCode::kInternal, "INTERNAL", "broken").With("stage", "2");
  const absl::Status first = error;
  const absl::Status second = error;
  EXPECT_EQ(first, second);
  EXPECT_EQ(ReasonOf(second), "INTERNAL");
}

TEST(ErrorTest, InvalidFieldNamesFieldProblemAndValue) {
  const absl::Status status = InvalidField("tensors[0].shape", "must be positive", "-3");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "tensors[0].shape: must be positive, got -3");
  EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
  EXPECT_THAT(ValuesOf(status), ElementsAre(Pair("field", "tensors[0].shape"), Pair("value", "-3")));
}

TEST(ErrorTest, AStatusWithoutReasonHasAnEmptyReasonAndNoValues) {
  EXPECT_EQ(ReasonOf(absl::InternalError("plain")), "");
  EXPECT_THAT(ValuesOf(absl::InternalError("plain")), IsEmpty());
  EXPECT_EQ(ReasonOf(absl::OkStatus()), "");
}

TEST(ErrorTest, PayloadsOfOthersAreNoNamedValues) {
  absl::Status status = Error(absl::StatusCode::kInternal, "INTERNAL", "broken");
  status.SetPayload("type.googleapis.com/other", absl::Cord("x"));
  EXPECT_THAT(ValuesOf(status), IsEmpty());
}

TEST(ErrorTest, APrefixKeepsCodeReasonAndValues) {
  const absl::Status status = WithPrefix(InvalidField("lr", "must be positive", "0"), "pipeline gpt: ");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "pipeline gpt: lr: must be positive, got 0");
  EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
  EXPECT_THAT(ValuesOf(status), ElementsAre(Pair("field", "lr"), Pair("value", "0")));
}

TEST(ErrorTest, ValuesMayHoldAnyBytes) {
  const std::string bytes("a\0\xff\n", 4);
  EXPECT_THAT(ValuesOf(WithValue(absl::InternalError("x"), "bytes", bytes)), ElementsAre(Pair("bytes", bytes)));
}

TEST(ToldBy, NamesWhoToldUnlessTheErrorIsAboutAnother) {
  const absl::Status lost = Error(absl::StatusCode::kUnavailable, "RANK_LOST", "rank 2 is lost").With("rank", "2");
  EXPECT_EQ(ToldBy(Rank(1), lost), lost);
  const absl::Status full = ToldBy(Rank(1), Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no room"));
  EXPECT_EQ(ValuesOf(full)["rank"], "1");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  const absl::Status lie = ToldBy(Rank(1), BadRankMessage("losses", "must be 4", "5"));
  EXPECT_EQ(lie.code(), absl::StatusCode::kAborted) << "it is not the fault of whoever waits";
  EXPECT_EQ(ReasonOf(lie), "RANK_MESSAGE");
  EXPECT_EQ(ValuesOf(lie)["field"], "losses");
  EXPECT_EQ(ValuesOf(lie)["rank"], "1");
}

}  // namespace
}  // namespace penstock
