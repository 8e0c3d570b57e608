#include "server/tracing/tracer.h"

#include <algorithm>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using ::testing::Contains;
using testing::FakeClock;
using ::testing::Pair;

constexpr char kPath[] = "/penstock.v1.WorkService/TrainStep";
const char kSampled[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const char kUnsampled[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

class TracerTest : public ::testing::Test {
 protected:
  Tracer Make(bool exports, double ratio) {
    return Tracer({.exports = exports,
                   .sample_ratio = ratio,
                   .send = [this](Span span) { spans_.push_back(std::move(span)); },
                   .random = [this](std::span<uint8_t> bytes) { std::fill(bytes.begin(), bytes.end(), ++random_); }},
                  &clock_);
  }

  FakeClock clock_{5'000};
  uint8_t random_ = 0;
  std::vector<Span> spans_;
};

TEST_F(TracerTest, ACallOfNobodysTraceCostsNothingWhereNothingIsWritten) {
  EXPECT_EQ(Make(false, 1).Begin(kPath, std::nullopt), nullptr);
}

TEST_F(TracerTest, ACallersTraceHasIdsEvenWhereNothingIsWritten) {
  const auto trace = Make(false, 1).Begin(kPath, ParseTraceparent(kSampled));
  ASSERT_NE(trace, nullptr);
  EXPECT_THAT(trace->Ids(), ::testing::ElementsAre(Pair("trace_id", "0af7651916cd43dd8448eb211c80319c"),
                                                   Pair("span_id", "0101010101010101")));
  trace->Finish(0, "");
  EXPECT_TRUE(spans_.empty());
}

TEST_F(TracerTest, TheCallersFlagWinsOverTheLocalShare) {
  Make(true, 0).Begin(kPath, ParseTraceparent(kSampled))->Finish(0, "");
  EXPECT_EQ(spans_.size(), 1);
  spans_.clear();
  Make(true, 1).Begin(kPath, ParseTraceparent(kUnsampled))->Finish(0, "");
  EXPECT_TRUE(spans_.empty());
}

TEST_F(TracerTest, TheShareIsThatOfNewTraces) {
  for (const double ratio : {0.0, 0.25, 1.0}) {
    spans_.clear();
    uint8_t first = 0;
    const Tracer tracer({.exports = true,
                         .sample_ratio = ratio,
                         .send = [this](Span span) { spans_.push_back(std::move(span)); },
                         .random =
                             [&](std::span<uint8_t> bytes) {
                               std::fill(bytes.begin(), bytes.end(), 1);
                               if (bytes.size() == 16) bytes[8] = first++;
                             }},
                        &clock_);
    for (int i = 0; i < 256; ++i) tracer.Begin(kPath, std::nullopt)->Finish(0, "");
    EXPECT_EQ(spans_.size(), static_cast<size_t>(256 * ratio));
  }
}

TEST_F(TracerTest, TheSpanOfACallTellsWhoseItIsAndHowItEnded) {
  auto caller = ParseTraceparent(kSampled);
  caller->state = "congo=1";
  const auto trace = Make(true, 0).Begin(kPath, caller);
  trace->Set("penstock.request_id", std::string("r1"));
  clock_.AdvanceNanos(1'000);
  trace->Finish(13, "a bug");
  trace->Finish(0, "twice counts once");
  ASSERT_EQ(spans_.size(), 1);
  const Span& span = spans_[0];
  EXPECT_EQ(span.name, "Recv.penstock.v1.WorkService.TrainStep");
  EXPECT_EQ(span.kind, Span::Kind::kServer);
  EXPECT_EQ(span.context.trace_id, caller->trace_id);
  EXPECT_EQ(span.context.state, "congo=1");
  EXPECT_EQ(span.parent, caller->span_id);
  EXPECT_EQ(span.begin_unix_nanos, 5'000);
  EXPECT_EQ(span.end_unix_nanos, 6'000);
  EXPECT_TRUE(span.failed);
  EXPECT_EQ(span.message, "a bug");
  EXPECT_THAT(span.attributes, Contains(Pair("rpc.grpc.status_code", SpanValue(int64_t{13}))));
  EXPECT_THAT(span.attributes, Contains(Pair("rpc.service", SpanValue(std::string("penstock.v1.WorkService")))));
  EXPECT_THAT(span.attributes, Contains(Pair("penstock.request_id", SpanValue(std::string("r1")))));
}

TEST_F(TracerTest, ACallersMistakeIsNoFailureOfTheServer) {
  Make(true, 0).Begin(kPath, ParseTraceparent(kSampled))->Finish(3, "bad field");
  EXPECT_FALSE(spans_.at(0).failed);
}

TEST_F(TracerTest, ANewTraceHasNoParent) {
  Make(true, 1).Begin(kPath, std::nullopt)->Finish(0, "");
  EXPECT_FALSE(spans_.at(0).parent.has_value());
}

TEST_F(TracerTest, WorkThatEndsAfterTheAnswerIsStillBelowItsCall) {
  const auto trace = Make(true, 1).Begin(kPath, std::nullopt);
  trace->Finish(0, "");
  trace->OnEnded({.pipeline = "gpt",
                  .method = "TrainStep",
                  .mode = "train",
                  .accepted_nanos = 6'000,
                  .started_nanos = 7'000,
                  .ended_nanos = 9'000,
                  .step = 12});
  ASSERT_EQ(spans_.size(), 3);
  EXPECT_EQ(spans_[1].name, "queue");
  EXPECT_EQ(spans_[1].begin_unix_nanos, 6'000);
  EXPECT_EQ(spans_[1].end_unix_nanos, 7'000);
  EXPECT_EQ(spans_[2].name, "run");
  EXPECT_EQ(spans_[2].end_unix_nanos, 9'000);
  for (const size_t child : {1, 2}) {
    EXPECT_EQ(spans_[child].parent, spans_[0].context.span_id);
    EXPECT_EQ(spans_[child].context.trace_id, spans_[0].context.trace_id);
    EXPECT_NE(spans_[child].context.span_id, spans_[0].context.span_id);
    EXPECT_EQ(spans_[child].kind, Span::Kind::kInternal);
    EXPECT_THAT(spans_[child].attributes, Contains(Pair("penstock.step", SpanValue(int64_t{12}))));
    EXPECT_THAT(spans_[child].attributes, Contains(Pair("penstock.mode", SpanValue(std::string("train")))));
  }
}

TEST_F(TracerTest, WorkThatNeverRanWasQueuedOnly) {
  const auto trace = Make(true, 1).Begin(kPath, std::nullopt);
  trace->OnEnded({.pipeline = "gpt",
                  .method = "Infer",
                  .accepted_nanos = 6'000,
                  .ended_nanos = 9'000,
                  .status = Error(absl::StatusCode::kDeadlineExceeded, "QUEUE_DEADLINE", "too late")});
  ASSERT_EQ(spans_.size(), 1);
  EXPECT_EQ(spans_[0].name, "queue");
  EXPECT_TRUE(spans_[0].failed);
  EXPECT_THAT(spans_[0].attributes, Contains(Pair("penstock.reason", SpanValue(std::string("QUEUE_DEADLINE")))));
}

}  // namespace
}  // namespace penstock
