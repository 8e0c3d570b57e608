#include "engine/observe/trace_capture.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "gtest/gtest.h"
#include "tests/unit/observe/traced_pipeline.h"

namespace penstock {
namespace {

using testing::TracedPipeline;
using From = TraceRecorder::From;

// States follow each other from begin to end, and their sums are what the counters grew by.
void ExpectConserved(const TraceCapture& capture) {
  for (const LaneCapture& lane : capture.lanes) {
    int64_t at = capture.begin_nanos;
    StateTimes sums;
    for (const TraceRecord& state : lane.states) {
      EXPECT_EQ(state.begin_nanos, at);
      EXPECT_GT(state.end_nanos, state.begin_nanos);
      at = state.end_nanos;
      sums.nanos[state.detail] += state.end_nanos - state.begin_nanos;
    }
    EXPECT_EQ(at, capture.end_nanos);
    for (const StageStateInfo& info : StageStates()) {
      EXPECT_EQ(lane.after[info.state] - lane.before[info.state], sums[info.state]) << info.name;
      EXPECT_GE(lane.before[info.state], 0) << info.name;
    }
  }
}

TEST(TraceCaptureTest, DumpsEverythingThatIsStillThere) {
  TracedPipeline pipeline;
  pipeline.Step();
  pipeline.Step();
  const TraceCapture capture = TraceRecorder(pipeline.metrics, From::kOldest).Finish();
  ASSERT_EQ(capture.lanes.size(), 2);
  EXPECT_EQ(capture.lanes[0].actions.size(), 2 * 6);
  EXPECT_EQ(capture.end_nanos - capture.begin_nanos, 200'000);
  EXPECT_FALSE(capture.incomplete);
  EXPECT_EQ(capture.wall_offset_nanos, 0) << "the fake clock's wall time is its monotonic time";
  ExpectConserved(capture);
  // Since the clocks' start: the counters at the begin are all zero.
  for (const int64_t nanos : capture.lanes[0].before.nanos) EXPECT_EQ(nanos, 0);
  EXPECT_EQ(capture.lanes[0].after[StageState::kForward], 2 * 20'000);
}

TEST(TraceCaptureTest, ARingThatWrappedGivesALaterBeginOnAllLanes) {
  TracedPipeline pipeline(16);
  for (int i = 0; i < 20; ++i) pipeline.Step();
  const TraceCapture capture = TraceRecorder(pipeline.metrics, From::kOldest).Finish();
  EXPECT_TRUE(capture.incomplete);
  EXPECT_GT(capture.lost, 0);
  EXPECT_GT(capture.begin_nanos, pipeline.clock.NowNanos() - 400'000);
  ExpectConserved(capture);
  for (const LaneCapture& lane : capture.lanes) {
    for (const TraceRecord& record : lane.actions) EXPECT_GE(record.begin_nanos, capture.begin_nanos);
  }
}

TEST(TraceCaptureTest, RecordsFromNowOnPastWhatTheRingsHold) {
  TracedPipeline pipeline(16);
  pipeline.Step();
  pipeline.Step();
  TraceRecorder recorder(pipeline.metrics, From::kNow);
  for (int i = 1; i <= 10; ++i) {
    pipeline.Step();
    recorder.Collect();
    EXPECT_EQ(recorder.steps_ended(), i);
  }
  const TraceCapture capture = recorder.Finish();
  EXPECT_FALSE(capture.incomplete);
  EXPECT_EQ(capture.lanes[0].actions.size(), 10 * 6);
  EXPECT_EQ(capture.end_nanos - capture.begin_nanos, 10 * 100'000);
  ExpectConserved(capture);
  EXPECT_EQ(capture.lanes[0].before[StageState::kForward], 2 * 20'000);
}

TEST(TraceCaptureTest, AStepThatWasRunningOrFailedIsNoneOfTheNext) {
  TracedPipeline pipeline;
  pipeline.Step();
  pipeline.base = pipeline.clock.NowNanos();
  pipeline.clock.AdvanceNanos(50'000);
  TraceRecorder recorder(pipeline.metrics, From::kNow);
  for (int lane : {0, 1}) {
    pipeline.metrics->lane(lane).trace.actions.Record({.begin_nanos = pipeline.base,
                                                       .end_nanos = pipeline.base + 90'000,
                                                       .kind = TraceKind::kRun,
                                                       .step = 2,
                                                       .run = 2});
  }
  pipeline.clock.AdvanceNanos(50'000);
  recorder.Collect();
  EXPECT_EQ(recorder.steps_ended(), 0);
  pipeline.Step(/*failed=*/true);
  recorder.Collect();
  EXPECT_EQ(recorder.steps_ended(), 0);
  pipeline.Step();
  recorder.Collect();
  EXPECT_EQ(recorder.steps_ended(), 1);
}

TEST(TraceCaptureTest, WhatARecorderMissedMakesItIncomplete) {
  TracedPipeline pipeline(16);
  TraceRecorder recorder(pipeline.metrics, From::kNow);
  for (int i = 0; i < 10; ++i) pipeline.Step();  // nobody collects
  const TraceCapture capture = recorder.Finish();
  EXPECT_TRUE(capture.incomplete);
  EXPECT_GT(capture.begin_nanos, pipeline.clock.NowNanos() - 400'000);
  ExpectConserved(capture);
}

TEST(TraceCaptureTest, ARecorderKeepsNoMoreThanItMay) {
  TracedPipeline pipeline(16);
  TraceRecorder recorder(pipeline.metrics, From::kNow, Rank(0), /*max_records=*/24);
  for (int i = 0; i < 10; ++i) {
    pipeline.Step();
    recorder.Collect();
  }
  const TraceCapture capture = recorder.Finish();
  EXPECT_TRUE(capture.incomplete);
  EXPECT_LE(capture.lanes[0].actions.size(), 24);
  EXPECT_LE(capture.lanes[0].states.size(), 26);
  ExpectConserved(capture);
}

TEST(TraceCaptureTest, CutsToSteps) {
  TracedPipeline pipeline;
  for (int i = 0; i < 5; ++i) pipeline.Step();
  const TraceCapture all = TraceRecorder(pipeline.metrics, From::kOldest).Finish();
  const auto cut = CutTraceToSteps(all, 2, 3);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->end_nanos - cut->begin_nanos, 195'000);
  const std::vector<RunSpan> runs = RunsOf(*cut);
  ASSERT_EQ(runs.size(), 2);
  EXPECT_EQ(runs[0].step, 2);
  EXPECT_EQ(runs[1].step, 3);
  EXPECT_EQ(runs[0].lanes, 2);
  ExpectConserved(*cut);
  EXPECT_EQ(cut->lanes[0].before[StageState::kForward], 20'000);
}

TEST(TraceCaptureTest, StepsThatAreNotThereAreNamed) {
  TracedPipeline pipeline(32);
  const auto reason = [&](int64_t first, int64_t last) {
    const auto cut = CutTraceToSteps(TraceRecorder(pipeline.metrics, From::kOldest).Finish(), first, last);
    return cut.ok() ? std::string("OK") : ReasonOf(cut.status()) + ": " + std::string(cut.status().message());
  };
  EXPECT_EQ(reason(1, 1), "STEP_NOT_RETAINED: step: no optimizer step is in the trace ring, got 1");
  for (int i = 0; i < 20; ++i) pipeline.Step();
  EXPECT_EQ(reason(20, 20), "OK");
  EXPECT_EQ(reason(20, 21), "STEP_NOT_RETAINED: step: has not ended, the last was 20, got 21");
  EXPECT_EQ(reason(3, 20), "STEP_NOT_RETAINED: step: is not in the trace ring any more (--trace-ring-events), got 3");
}

TEST(TraceCaptureTest, AfterARestoreTheLastPassOverAStepCounts) {
  TracedPipeline pipeline;
  for (int i = 0; i < 5; ++i) pipeline.Step();
  pipeline.step = 2;  // a checkpoint of step 2
  pipeline.Step();
  const int64_t begin = pipeline.base;
  const TraceCapture all = TraceRecorder(pipeline.metrics, From::kOldest).Finish();
  const auto third = CutTraceToSteps(all, 3, 3);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->begin_nanos, begin);
  for (const int64_t last : {4, 5}) {  // steps that are undone, alone and behind one that is not
    for (const int64_t first : {int64_t{3}, last}) {
      EXPECT_EQ(CutTraceToSteps(all, first, last).status().message(),
                absl::StrCat("step: has not ended, the last was 3, got ", last));
    }
  }
}

}  // namespace
}  // namespace penstock
