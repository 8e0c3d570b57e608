#include "engine/observe/rank_trace.h"

#include <functional>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/observe/traced_pipeline.h"

namespace penstock {
namespace {

using testing::TracedPipeline;
using From = TraceRecorder::From;

constexpr int64_t kAhead = 5'000'000;  // of the other rank's clock

// The same steps in two processes: the leader has lane 0, rank 1 has lane 1, and a clock of its own.
struct TwoProcesses {
  TwoProcesses() {
    for (int i = 0; i < 3; ++i) {
      leader.Step();
      other.Step();
    }
    own = TraceRecorder(leader.metrics, From::kOldest).Finish();
    trace = TraceLanesOf(Rank(1), other.metrics, own.begin_nanos + kAhead, own.end_nanos + kAhead);
  }

  absl::Status Check() const {
    return CheckRankTrace(trace, Rank(1), own, own.begin_nanos + kAhead, own.end_nanos + kAhead);
  }

  TracedPipeline leader{1024, Rank(1)};
  TracedPipeline other{1024, Rank(1), kAhead};
  TraceCapture own;
  RankTrace trace;
};

TEST(RankTraceTest, AProcessRecordsItsOwnLanes) {
  TwoProcesses two;
  EXPECT_EQ(two.own.lanes[0].actions.size(), 3 * 6u);
  EXPECT_TRUE(two.own.lanes[1].actions.empty());
  EXPECT_TRUE(two.own.lanes[1].states.empty());
  ASSERT_EQ(two.trace.lanes.size(), 1u);
  EXPECT_EQ(two.trace.lanes[0].description.lane, 1);
  TraceRecorder recorder(two.leader.metrics, From::kNow);
  two.leader.Step();
  recorder.Collect();
  EXPECT_EQ(recorder.steps_ended(), 1) << "lanes of others are not waited for";
}

TEST(RankTraceTest, TheJointTraceIsThatOfOneProcess) {
  TwoProcesses two;
  ASSERT_TRUE(two.Check().ok()) << two.Check();
  TraceCapture joint = JoinTraces(
      two.own, {{Rank(1), {.clock = {.rank = 1, .ahead_nanos = kAhead, .uncertainty_nanos = 70}, .trace = two.trace}}});
  TracedPipeline alone;
  for (int i = 0; i < 3; ++i) alone.Step();
  const TraceCapture wanted = TraceRecorder(alone.metrics, From::kOldest).Finish();
  EXPECT_EQ(joint.begin_nanos, wanted.begin_nanos);
  EXPECT_EQ(joint.end_nanos, wanted.end_nanos);
  EXPECT_FALSE(joint.incomplete);
  for (size_t lane = 0; lane < 2; ++lane) {
    EXPECT_EQ(joint.lanes[lane].actions, wanted.lanes[lane].actions) << lane;
    EXPECT_EQ(joint.lanes[lane].states, wanted.lanes[lane].states) << lane;
    EXPECT_EQ(joint.lanes[lane].before.nanos, wanted.lanes[lane].before.nanos) << lane;
    EXPECT_EQ(joint.lanes[lane].after.nanos, wanted.lanes[lane].after.nanos) << lane;
    EXPECT_EQ(joint.lanes[lane].description.device, wanted.lanes[lane].description.device);
  }
  ASSERT_EQ(joint.ranks.size(), 1u);
  EXPECT_EQ(joint.ranks[0].uncertainty_nanos, 70);
  EXPECT_EQ(RunsOf(joint)[0].lanes, 2);
  const auto steps = CutTraceToSteps(joint, 2, 2);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->ranks.size(), 1u);
}

TEST(RankTraceTest, WithoutOneItIsIncomplete) {
  TwoProcesses two;
  const TraceCapture joint = JoinTraces(two.own, {{Rank(1), {.clock = {.rank = 1, .missing = true}}}});
  EXPECT_TRUE(joint.incomplete);
  EXPECT_EQ(joint.lanes[0].actions, two.own.lanes[0].actions);
  EXPECT_TRUE(joint.lanes[1].actions.empty());
  EXPECT_TRUE(joint.ranks.at(0).missing);
}

TEST(RankTraceTest, RingsOfARankThatHaveWrappedMakeItShorter) {
  TracedPipeline leader(1024, Rank(1));
  TracedPipeline other(16, Rank(1), kAhead);
  for (int i = 0; i < 20; ++i) {
    leader.Step();
    other.Step();
  }
  const TraceCapture own = TraceRecorder(leader.metrics, From::kOldest).Finish();
  RankTrace trace = TraceLanesOf(Rank(1), other.metrics, own.begin_nanos + kAhead, own.end_nanos + kAhead);
  EXPECT_GT(trace.lost, 0u);
  ASSERT_TRUE(CheckRankTrace(trace, Rank(1), own, own.begin_nanos + kAhead, own.end_nanos + kAhead).ok());
  const int64_t begin = trace.begin_nanos - kAhead;
  const TraceCapture joint =
      JoinTraces(own, {{Rank(1), {.clock = {.rank = 1, .ahead_nanos = kAhead}, .trace = std::move(trace)}}});
  EXPECT_TRUE(joint.incomplete);
  EXPECT_EQ(joint.begin_nanos, begin);
  EXPECT_EQ(joint.end_nanos, own.end_nanos);
  for (const LaneCapture& lane : joint.lanes) {
    EXPECT_EQ(lane.states.front().begin_nanos, begin);
    EXPECT_EQ(lane.states.back().end_nanos, own.end_nanos);
  }
}

// A ring that others' records have lapped since: the rank has nothing of the span, the others have all of theirs.
TEST(RankTraceTest, ARankThatHasNothingOfTheSpanIsMissing) {
  TwoProcesses two;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{-100, -50}, {kAhead * 9, kAhead * 10}}) {
    const RankTrace trace = TraceLanesOf(Rank(1), two.other.metrics, begin, end);
    EXPECT_EQ(trace.begin_nanos, trace.end_nanos);
    EXPECT_TRUE(CheckRankTrace(trace, Rank(1), two.own, begin, end).ok());
    const TraceCapture joint = JoinTraces(two.own, {{Rank(1), {.clock = {.rank = 1}, .trace = trace}}});
    EXPECT_TRUE(joint.ranks.at(0).missing);
    EXPECT_TRUE(joint.incomplete);
    EXPECT_EQ(joint.lanes[0].actions, two.own.lanes[0].actions);
    EXPECT_EQ(LanesThere(joint), 1);
    const auto steps = CutTraceToSteps(joint, 2, 2);
    ASSERT_TRUE(steps.ok()) << steps.status();
    EXPECT_TRUE(steps->incomplete);
    EXPECT_EQ(steps->lanes[0].actions.size(), 6u);
  }
}

// An accelerator tells its times later than the host, which goes on meanwhile.
TEST(RankTraceTest, ActionsAreInTheOrderOfTheirEnds) {
  TwoProcesses two;
  two.other.Act(1, TraceKind::kForward, StageState::kForward, -40, -30);
  const RankTrace trace =
      TraceLanesOf(Rank(1), two.other.metrics, two.own.begin_nanos + kAhead, two.own.end_nanos + kAhead);
  EXPECT_EQ(trace.lanes.at(0).actions.size(), two.trace.lanes[0].actions.size() + 1);
  EXPECT_TRUE(CheckRankTrace(trace, Rank(1), two.own, two.own.begin_nanos + kAhead, two.own.end_nanos + kAhead).ok());
}

TEST(RankTraceTest, LiesAreErrors) {
  const std::vector<std::pair<const char*, std::function<void(RankTrace*)>>> lies = {
      {"ends before it begins", [](RankTrace* t) { std::swap(t->begin_nanos, t->end_nanos); }},
      {"earlier than asked", [](RankTrace* t) { --t->begin_nanos; }},
      {"later than asked", [](RankTrace* t) { ++t->end_nanos; }},
      {"another's lane", [](RankTrace* t) { t->lanes[0].description.lane = 0; }},
      {"no lane", [](RankTrace* t) { t->lanes[0].description.lane = -1; }},
      {"beyond all lanes", [](RankTrace* t) { t->lanes[0].description.lane = 2; }},
      {"one twice", [](RankTrace* t) { t->lanes.push_back(t->lanes[0]); }},
      {"none", [](RankTrace* t) { t->lanes.clear(); }},
      {"an action of no kind", [](RankTrace* t) { t->lanes[0].actions[0].kind = static_cast<TraceKind>(99); }},
      {"a state among actions", [](RankTrace* t) { t->lanes[0].actions[0].kind = TraceKind::kState; }},
      {"a run for nothing", [](RankTrace* t) { t->lanes[0].actions[5].detail = 77; }},
      {"an action that ends before it begins",
       [](RankTrace* t) { t->lanes[0].actions[0].begin_nanos = t->lanes[0].actions[0].end_nanos + 1; }},
      {"an action before the trace", [](RankTrace* t) { t->lanes[0].actions[0].begin_nanos = t->begin_nanos - 1; }},
      {"actions out of order", [](RankTrace* t) { std::swap(t->lanes[0].actions[0], t->lanes[0].actions[1]); }},
      {"an action of another lane", [](RankTrace* t) { t->lanes[0].actions[0].lane = 0; }},
      {"a gap between states", [](RankTrace* t) { ++t->lanes[0].states[1].begin_nanos; }},
      {"no states at the end", [](RankTrace* t) { t->lanes[0].states.pop_back(); }},
      {"a state of no kind", [](RankTrace* t) { t->lanes[0].states[0].detail = kStageStateCount; }},
      {"an action among states", [](RankTrace* t) { t->lanes[0].states[0].kind = TraceKind::kForward; }},
      {"negative counters", [](RankTrace* t) { t->lanes[0].after.nanos[0] = -1; }},
  };
  for (const auto& [name, lie] : lies) {
    TwoProcesses two;
    lie(&two.trace);
    EXPECT_EQ(ReasonOf(two.Check()), "RANK_MESSAGE") << name;
  }
}

}  // namespace
}  // namespace penstock
