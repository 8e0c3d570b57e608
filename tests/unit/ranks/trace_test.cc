// Traces of other ranks: as messages and back, and how they come together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "server/ranks/trace_convert.h"
#include "server/ranks/trace_joining.h"
#include "tests/unit/observe/traced_pipeline.h"

namespace penstock {
namespace {

constexpr int64_t kAhead = 1'000'000'000;
const int64_t kBegin = testing::FakeClock().NowNanos();  // of all traces, by the leader's clock

RankTrace SomeTrace() {
  testing::TracedPipeline pipeline(1024, Rank(1), kAhead);
  pipeline.Step();
  pipeline.Step(/*failed=*/true);
  return TraceLanesOf(Rank(1), pipeline.metrics, 0, kBegin + 2 * kAhead);
}

// As it comes out at the other end of the stream.
absl::StatusOr<RankTrace> Sent(const OutgoingReport& report) {
  MessageReader<peer::v1::Report> reader;
  for (const MessagePart& part : report.ToParts()) {
    PENSTOCK_ASSIGN_OR_RETURN(auto whole, reader.Take(part));
    if (!whole.has_value()) continue;
    IncomingTensors tensors(std::move(whole->tensors));
    return TakeTrace(whole->message.trace(), tensors);
  }
  return absl::InternalError("the report is not whole");
}

TEST(TraceConvert, ATraceArrivesAsItWas) {
  const RankTrace trace = SomeTrace();
  OutgoingReport report;
  ASSERT_TRUE(AddTrace(trace, &report).ok());
  const auto arrived = Sent(report);
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_EQ(arrived->begin_nanos, trace.begin_nanos);
  EXPECT_EQ(arrived->end_nanos, trace.end_nanos);
  EXPECT_EQ(arrived->lost, trace.lost);
  ASSERT_EQ(arrived->lanes.size(), 1u);
  EXPECT_EQ(arrived->lanes[0].description.lane, 1);
  EXPECT_EQ(arrived->lanes[0].actions, trace.lanes[0].actions);
  EXPECT_EQ(arrived->lanes[0].states, trace.lanes[0].states);
  EXPECT_EQ(arrived->lanes[0].after.nanos, trace.lanes[0].after.nanos);
}

TEST(TraceConvert, WhatDoesNotFitTogetherIsAnError) {
  const auto reason = [](const std::function<void(OutgoingReport*)>& change) {
    OutgoingReport report;
    EXPECT_TRUE(AddTrace(SomeTrace(), &report).ok());
    change(&report);
    return ReasonOf(Sent(report).status());
  };
  const auto shape = [](OutgoingReport* report, std::vector<int64_t> sizes) {
    auto* to = report->message().mutable_tensors(0)->mutable_shape();
    to->Clear();
    to->Add(sizes.begin(), sizes.end());
  };
  EXPECT_EQ(reason([](OutgoingReport*) {}), "");
  EXPECT_EQ(reason([](OutgoingReport* r) { r->message().mutable_trace()->add_lanes(); }), "RANK_MESSAGE");
  EXPECT_EQ(reason([](OutgoingReport* r) {
              auto* lane = r->message().mutable_trace()->mutable_lanes(0);
              lane->mutable_state_nanos()->RemoveLast();
            }),
            "RANK_MESSAGE");
  EXPECT_EQ(reason([](OutgoingReport* r) {
              auto* lane = r->message().mutable_trace()->add_lanes();
              *lane = r->message().trace().lanes(0);
            }),
            "RANK_MESSAGE")
      << "without tensors";
  const int64_t rows = static_cast<int64_t>(SomeTrace().lanes[0].actions.size());
  EXPECT_EQ(reason([&](OutgoingReport* r) { shape(r, {7, rows}); }), "RANK_MESSAGE") << "rows of another length";
  EXPECT_EQ(reason([&](OutgoingReport* r) { shape(r, {rows * 7}); }), "RANK_MESSAGE");
}

TraceCapture OwnLanes() {
  testing::TracedPipeline pipeline(1024, Rank(1));
  pipeline.Step();
  pipeline.Step(/*failed=*/true);
  return TraceRecorder(pipeline.metrics, TraceRecorder::From::kOldest).Finish();
}

TEST(TraceJoining, TheLastPartGivesTheTraceAway) {
  std::optional<TraceCapture> joint;
  const RankClock one = {.rank = 1, .ahead_nanos = kAhead, .uncertainty_nanos = 5};
  TraceJoining joining(OwnLanes(), {{Rank(1), one}, {Rank(2), {.rank = 2}}},
                       [&](TraceCapture whole) { joint = std::move(whole); });
  const auto [begin, end] = joining.SpanOf(Rank(1));
  EXPECT_EQ(begin, kBegin + kAhead - 5);
  EXPECT_EQ(end, kBegin + kAhead + 200'000 + 5);
  joining.Give(Rank(1), SomeTrace());
  EXPECT_FALSE(joint.has_value());
  joining.Give(Rank(2), absl::UnavailableError("lost"));
  ASSERT_TRUE(joint.has_value());
  EXPECT_EQ(joint->lanes[1].actions.size(), 12u);
  EXPECT_EQ(joint->lanes[1].actions[0].begin_nanos, kBegin + 25'000);
  ASSERT_EQ(joint->ranks.size(), 2u);
  EXPECT_FALSE(joint->ranks[0].missing);
  EXPECT_TRUE(joint->ranks[1].missing);
  EXPECT_TRUE(joint->incomplete);
}

TEST(TraceJoining, WhoDoesNotAnswerInTimeIsMissing) {
  int calls = 0;
  std::optional<TraceCapture> joint;
  TraceJoining joining(OwnLanes(), {{Rank(1), {.rank = 1, .ahead_nanos = kAhead}}, {Rank(2), {.rank = 2}}},
                       [&](TraceCapture whole) {
                         ++calls;
                         joint = std::move(whole);
                       });
  joining.Give(Rank(1), SomeTrace());
  joining.GiveUp(absl::DeadlineExceededError("it says nothing"));
  ASSERT_EQ(calls, 1);
  EXPECT_FALSE(joint->ranks[0].missing) << "what has come stays";
  EXPECT_TRUE(joint->ranks[1].missing);
  for (const Rank late : {Rank(1), Rank(2)}) joining.Give(late, absl::UnavailableError("late"));
  joining.GiveUp(absl::DeadlineExceededError("again"));
  EXPECT_EQ(calls, 1);
}

TEST(TraceJoining, ALieMakesARankMissing) {
  std::optional<TraceCapture> joint;
  TraceJoining joining(OwnLanes(), {{Rank(1), {.rank = 1, .ahead_nanos = kAhead}}},
                       [&](TraceCapture whole) { joint = std::move(whole); });
  RankTrace trace = SomeTrace();
  trace.lanes[0].states[0].detail = 250;
  joining.Give(Rank(1), std::move(trace));
  ASSERT_TRUE(joint.has_value());
  EXPECT_TRUE(joint->ranks[0].missing);
  EXPECT_TRUE(joint->lanes[1].states.empty());
}

}  // namespace
}  // namespace penstock
