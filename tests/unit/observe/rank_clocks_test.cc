#include "engine/observe/rank_clocks.h"

#include <cstdlib>
#include <random>

#include "engine/observe/trace_flows.h"
#include "gtest/gtest.h"
#include "tests/unit/observe/traced_pipeline.h"

namespace penstock {
namespace {

using testing::TracedPipeline;
using From = TraceRecorder::From;

// Traces with nothing but messages.
struct Messages {
  // A message that `from` sent at one moment and `to` received at another, each by its own clock.
  void Add(int from, int64_t sent, int to, int64_t received) {
    ++number;
    Put(from, {.begin_nanos = sent, .kind = TraceKind::kSendActivation, .correlation = number});
    Put(to, {.begin_nanos = received, .kind = TraceKind::kReceiveActivation, .correlation = number});
  }

  void Know(int rank, int64_t ahead, int64_t uncertainty) {
    others[Rank(rank)].clock = {.rank = rank, .ahead_nanos = ahead, .uncertainty_nanos = uncertainty};
  }

  void Put(int rank, TraceRecord record) {
    std::vector<LaneCapture>& lanes = rank == 0 ? own.lanes : others[Rank(rank)].trace.lanes;
    if (lanes.empty()) lanes.emplace_back();
    lanes[0].actions.push_back(record);
  }

  const RankClock& Of(int rank) { return others[Rank(rank)].clock; }

  TraceCapture own;
  std::map<Rank, RankPart> others;
  uint64_t number = 0;
};

TEST(RankClocksTest, MessagesOfBothDirectionsBoundAClock) {
  Messages messages;
  messages.Know(1, 50, 100);       // -50 to 150
  messages.Add(0, 1000, 1, 1030);  // at most 30 ahead
  messages.Add(1, 2000, 0, 1990);  // at least 10
  NarrowClocks(messages.own, &messages.others);
  EXPECT_EQ(messages.Of(1).ahead_nanos, 20);
  EXPECT_EQ(messages.Of(1).uncertainty_nanos, 10);
}

TEST(RankClocksTest, WithoutMessagesPingsCount) {
  Messages messages;
  messages.Know(1, 50, 100);
  messages.Put(1, {.begin_nanos = 7, .kind = TraceKind::kReceiveActivation, .correlation = 99});
  messages.Put(1, {.begin_nanos = 7, .kind = TraceKind::kSendActivation, .correlation = 98});
  NarrowClocks(messages.own, &messages.others);
  EXPECT_EQ(messages.Of(1).ahead_nanos, 50);
  EXPECT_EQ(messages.Of(1).uncertainty_nanos, 100);
}

TEST(RankClocksTest, ThoseWithinARankSayNothing) {
  Messages messages;
  messages.Know(1, 0, 100);
  messages.Add(1, 10, 1, 5);
  messages.Add(0, 1000, 1, 1020);
  NarrowClocks(messages.own, &messages.others);
  EXPECT_EQ(messages.Of(1).uncertainty_nanos, 60) << "-100 to 20";
}

TEST(RankClocksTest, MessagesBetweenOthersBoundBoth) {
  Messages messages;
  messages.Know(1, 0, 10);
  messages.Know(2, 0, 1000);
  messages.Add(1, 500, 2, 520);  // 2 is at most 20 ahead of 1
  messages.Add(2, 900, 1, 880);  // and at least 20
  NarrowClocks(messages.own, &messages.others);
  EXPECT_EQ(messages.Of(2).ahead_nanos - messages.Of(1).ahead_nanos, 20);
  EXPECT_EQ(messages.Of(1).ahead_nanos, 0);
  EXPECT_EQ(messages.Of(2).uncertainty_nanos, 10) << "as unknown as that of 1";
}

TEST(RankClocksTest, ContradictionsChangeNothing) {
  Messages messages;
  messages.Know(1, 0, 10);
  messages.Know(2, 0, 1000);
  messages.Add(0, 1000, 2, 1010);
  messages.Add(1, 1000, 0, 900);  // at least 100 ahead: pings say at most 10
  NarrowClocks(messages.own, &messages.others);
  EXPECT_EQ(messages.Of(1).ahead_nanos, 0);
  EXPECT_EQ(messages.Of(1).uncertainty_nanos, 10);
  EXPECT_EQ(messages.Of(2).uncertainty_nanos, 1000);
}

TEST(RankClocksTest, ARankThatIsMissingStaysAsItIs) {
  Messages messages;
  messages.Know(1, 5, 10);
  messages.others[Rank(1)].clock.missing = true;
  messages.Know(2, 0, 1000);
  messages.Add(0, 100, 2, 130);
  messages.Add(2, 200, 0, 190);
  NarrowClocks(messages.own, &messages.others);
  EXPECT_EQ(messages.Of(1).ahead_nanos, 5);
  EXPECT_EQ(messages.Of(2).ahead_nanos, 20);
}

// Random clocks, pings and messages: afterwards the truth is within the uncertainty, which has not grown, and no message
// arrives before it was sent.
TEST(RankClocksTest, TheTruthIsWithinTheUncertainty) {
  std::mt19937_64 random(20);
  const auto below = [&random](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
  for (int round = 0; round < 200; ++round) {
    const int ranks = 2 + static_cast<int>(below(4));
    Messages messages;
    std::vector<int64_t> truth = {0};
    std::vector<int64_t> doubt = {0};
    for (int rank = 1; rank < ranks; ++rank) {
      truth.push_back(below(1'000'000) - 500'000);
      doubt.push_back(1 + below(10'000));
      messages.Know(rank, truth.back() + below(2 * doubt.back()) - doubt.back(), doubt.back());
    }
    struct Sent {
      int from;
      int64_t sent;
      int to;
      int64_t received;
    };
    std::vector<Sent> all;
    for (int64_t i = below(60); i > 0; --i) {
      const int from = static_cast<int>(below(ranks));
      const int to = static_cast<int>(below(ranks));
      const int64_t at = below(1'000'000);
      all.push_back(
          {from, at + truth[static_cast<size_t>(from)], to, at + below(3000) + truth[static_cast<size_t>(to)]});
      messages.Add(from, all.back().sent, to, all.back().received);
    }
    NarrowClocks(messages.own, &messages.others);
    const auto ahead = [&messages](int rank) { return rank == 0 ? 0 : messages.Of(rank).ahead_nanos; };
    for (int rank = 1; rank < ranks; ++rank) {
      const RankClock& clock = messages.Of(rank);
      EXPECT_LE(std::abs(clock.ahead_nanos - truth[static_cast<size_t>(rank)]), clock.uncertainty_nanos) << round;
      EXPECT_LE(clock.uncertainty_nanos, 2 * doubt[static_cast<size_t>(rank)]) << round;
    }
    for (const Sent& message : all) {
      EXPECT_LE(message.sent - ahead(message.from), message.received - ahead(message.to)) << round;
    }
  }
}

// Pings that were slow are no reason to lose arrows: with the offset they tell, here 40 microseconds wrong, gradients
// would arrive before they are sent.
TEST(RankClocksTest, AJointTraceHasAllArrows) {
  constexpr int64_t kAhead = 5'000'000;
  TracedPipeline leader(1024, Rank(1));
  TracedPipeline other(1024, Rank(1), kAhead);
  for (int i = 0; i < 3; ++i) {
    leader.Step();
    other.Step();
  }
  const TraceCapture own = TraceRecorder(leader.metrics, From::kOldest).Finish();
  const RankClock clock{.rank = 1, .ahead_nanos = kAhead - 40'000, .uncertainty_nanos = 50'000};
  RankTrace trace = TraceLanesOf(Rank(1), other.metrics, own.begin_nanos + clock.ahead_nanos - clock.uncertainty_nanos,
                                 own.end_nanos + clock.ahead_nanos + clock.uncertainty_nanos);
  const TraceCapture joint = JoinTraces(own, {{Rank(1), {.clock = clock, .trace = std::move(trace)}}});
  EXPECT_EQ(joint.ranks[0].ahead_nanos, kAhead) << "messages take 5 microseconds both ways";
  EXPECT_EQ(joint.ranks[0].uncertainty_nanos, 5'000);
  const TraceFlows flows(joint);
  int ends = 0;
  for (const LaneCapture& lane : joint.lanes) {
    for (const TraceRecord& record : lane.actions) {
      for (const FlowPoint& point : flows.PointsOf(record)) ends += point.kind == FlowPoint::Kind::kEnd ? 1 : 0;
    }
  }
  EXPECT_EQ(ends, 6);
  EXPECT_EQ(RunsOf(joint).size(), 3u);
}

}  // namespace
}  // namespace penstock
