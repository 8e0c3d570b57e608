#pragma once

// Two lanes that run steps on a fake clock and leave the records that executors leave.

#include <memory>
#include <vector>

#include "engine/observe/metrics.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {

// A pipeline of two stages, one per lane. Step() runs one micro-batch forward and back: in all 100 microseconds,
//   lane 0   F0 0-20  SEND 20-22                                 RECV 70-71  B0 72-90  OPT 90-95
//   lane 1                       RECV 25-26  F0 27-40  B0 40-65  SEND 65-68            OPT 90-95
class TracedPipeline {
 public:
  // `second`: the rank of lane 1. `start_nanos`: what the clock shows at the begin.
  explicit TracedPipeline(int64_t ring_events = 1024, Rank second = Rank(0), int64_t start_nanos = 0) {
    clock.AdvanceNanos(start_nanos);
    base = clock.NowNanos();
    metrics = std::make_shared<PipelineMetrics>(
        &clock, "gpt",
        std::vector<LaneDescription>{{.lane = 0, .device = "cpu:0", .layers = "0-3"},
                                     {.lane = 1, .device = "cpu:1", .layers = "4-7", .rank = second}},
        ScheduleDescription(), ring_events);
    for (int lane : {0, 1}) Enter(lane, StageState::kNoWork, 0);
  }

  void Step(bool failed = false) {
    ++run;
    ++step;
    base = clock.NowNanos();
    for (int lane : {0, 1}) Enter(lane, StageState::kFill, 0);
    Act(0, TraceKind::kForward, StageState::kForward, 0, 20);
    Message(0, TraceKind::kSendActivation, 1, 20, 22);
    Message(1, TraceKind::kReceiveActivation, 1, 25, 26);
    Act(1, TraceKind::kForward, StageState::kForward, 27, 40);
    Act(1, TraceKind::kBackward, StageState::kBackward, 40, 65);
    Message(1, TraceKind::kSendGradient, 0, 65, 68);
    Message(0, TraceKind::kReceiveGradient, 0, 70, 71);
    Act(0, TraceKind::kBackward, StageState::kBackward, 72, 90);
    for (int lane : {0, 1}) {
      Act(lane, TraceKind::kOptimizer, StageState::kOptimizer, 90, 95);
      metrics->lane(lane).trace.actions.Record({.begin_nanos = base,
                                                .end_nanos = base + 95'000,
                                                .kind = TraceKind::kRun,
                                                .detail = static_cast<uint8_t>(TraceRun::kTrainStep),
                                                .failed = failed,
                                                .lane = static_cast<int16_t>(lane),
                                                .micro_batch = 1,
                                                .step = step,
                                                .run = run});
      Enter(lane, StageState::kNoWork, 95);
    }
    clock.AdvanceNanos(100'000);
  }

  void Enter(int lane, StageState state, int64_t micros) {
    metrics->lane(lane).state.Enter(state, base + micros * 1000);
  }

  void Act(int lane, TraceKind kind, StageState state, int64_t begin, int64_t end) {
    Enter(lane, state, begin);
    Enter(lane, StageState::kHost, end);
    Record(lane, kind, begin, end, 0);
  }

  void Message(int lane, TraceKind kind, int receiver, int64_t begin, int64_t end) {
    const bool gradient = kind == TraceKind::kSendGradient || kind == TraceKind::kReceiveGradient;
    Record(lane, kind, begin, end, MessageCorrelation(run, gradient, receiver, 0, -1));
  }

  void Record(int lane, TraceKind kind, int64_t begin, int64_t end, uint64_t correlation) {
    metrics->lane(lane).trace.actions.Record({.begin_nanos = base + begin * 1000,
                                              .end_nanos = base + end * 1000,
                                              .kind = kind,
                                              .detail = static_cast<uint8_t>(kind == TraceKind::kOptimizer ? 2 : 0),
                                              .lane = static_cast<int16_t>(lane),
                                              .stage = lane,
                                              .micro_batch = 0,
                                              .step = step,
                                              .run = run,
                                              .correlation = correlation});
  }

  FakeClock clock;
  std::shared_ptr<PipelineMetrics> metrics;
  int64_t base = clock.NowNanos();
  int64_t run = 0;
  int64_t step = 0;
};

}  // namespace penstock::testing
