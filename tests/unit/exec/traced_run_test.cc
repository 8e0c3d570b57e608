// What a real pipeline leaves in its trace rings, and what is read out of them.

#include <ATen/ops/randn.h>

#include <map>
#include <set>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/measured_schedule.h"
#include "engine/exec/pipeline.h"
#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_export.h"
#include "engine/plan/planning.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/small_specs.h"

namespace penstock {
namespace {

constexpr int64_t kTracedWidth = testing::kSmallWidth;

PipelineSpec Mlp(const std::string& kind, int chunks = 1) {
  PipelineSpec spec = testing::SmallMlp(2 * chunks, 4, kind);
  spec.schedule.chunks = chunks;
  return spec;
}

using testing::SmallBatch;

std::string Reason(const absl::Status& status) { return ReasonOf(status) + ": " + std::string(status.message()); }

class TracedRunTest : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec, int64_t ring_events = 4096) {
    Pipeline::Options options;
    options.devices = &pool_;
    options.profile = {.rows = 2, .repeats = 1};
    options.profile.planning = planning_;
    options.metrics = [this, ring_events](const Plan& plan) {
      std::vector<LaneDescription> lanes;
      for (const StagePlan& stage : plan.stages) {
        if (stage.lane == static_cast<int>(lanes.size())) lanes.push_back({.lane = stage.lane, .device = stage.device});
      }
      if (lanes.size() == 2) {
        lanes[0].links = {{.to = 1, .kind = LinkKind::kActivation}};
        lanes[1].links = {{.to = 0, .kind = LinkKind::kGradient}};
      }
      metrics_ = std::make_shared<PipelineMetrics>(RealClock(), "test", lanes, ScheduleDescription(), ring_events);
      return metrics_;
    };
    auto pipeline = Pipeline::Create(spec, options);
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }

  TraceCapture Dump() { return TraceRecorder(metrics_, TraceRecorder::From::kOldest).Finish(); }

  DevicePool pool_{{{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kThreads};
  Planning* planning_ = EndlessPlanning();
  std::shared_ptr<PipelineMetrics> metrics_;
};

// Texts of a lane's compute actions in one run, in the order of their ends.
std::vector<std::string> ActionsOf(const LaneCapture& lane, int64_t run) {
  std::vector<std::string> texts;
  for (const TraceRecord& record : lane.actions) {
    const std::string name = TraceName(record);
    if (record.run == run && record.kind != TraceKind::kRun && name.find("SEND") == name.npos &&
        name.find("RECV") == name.npos) {
      texts.push_back(name);
    }
  }
  return texts;
}

TEST_F(TracedRunTest, EveryActionOfAStepIsThereInTheOrderOfTheList) {
  auto pipeline = Make(Mlp("1f1b"));
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  const TraceCapture capture = Dump();
  const std::vector<RunSpan> runs = RunsOf(capture);
  ASSERT_EQ(runs.size(), 2);
  EXPECT_EQ(runs[1].step, 2);
  EXPECT_EQ(runs[1].purpose, TraceRun::kTrainStep);
  EXPECT_EQ(runs[1].micro_batches, 4);
  EXPECT_EQ(runs[1].lanes, 2);
  EXPECT_THAT(
      ActionsOf(capture.lanes[1], runs[1].run),
      ::testing::ElementsAre("1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "1F3", "1B3", "1OPT norms", "1OPT apply"));
}

TEST_F(TracedRunTest, WhatIsKeptIsCountedByKindUntilItIsGivenBack) {
  PipelineSpec spec = Mlp("1f1b");
  spec.cut = {.balance = {2, 2}};  // a measured one may be uneven
  auto pipeline = Make(spec);
  constexpr int64_t kWeights = 2 * (kTracedWidth * kTracedWidth + kTracedWidth) * 4;  // of two layers
  const auto bytes = [&](int lane, MemoryKind kind) { return (*metrics_->lane(lane).memory)[kind].value(); };
  EXPECT_EQ(bytes(0, MemoryKind::kWeights), kWeights);
  EXPECT_EQ(bytes(0, MemoryKind::kGradients), 0);
  ASSERT_TRUE(pipeline->ForwardBackward(SmallBatch(8)).ok());
  EXPECT_EQ(bytes(1, MemoryKind::kGradients), kWeights);
  EXPECT_EQ(bytes(0, MemoryKind::kStash) + bytes(1, MemoryKind::kStash), 0) << "every backward has run";
  pipeline->DiscardGradients();
  EXPECT_EQ(bytes(1, MemoryKind::kGradients), 0);
  const std::shared_ptr<MemoryCells> memory = metrics_->lane(0).memory;
  auto forward = pipeline->Forward({.inputs = NamedTensors{{"input", at::randn({8, kTracedWidth})}}});
  ASSERT_TRUE(forward.ok());
  EXPECT_GE(bytes(0, MemoryKind::kStash), 8 * kTracedWidth * 4) << "at least its inputs";
  // A graph may outlive its pipeline.
  pipeline.reset();
  metrics_.reset();
  EXPECT_GT((*memory)[MemoryKind::kStash].value(), 0);
  forward->graph.reset();
  EXPECT_EQ((*memory)[MemoryKind::kStash].value(), 0);
}

TEST_F(TracedRunTest, TheFirstStepsMemoryIsTakenWhereThereIsTimeToMeasure) {
  PipelineSpec spec = Mlp("1f1b");
  spec.cut = {.balance = {2, 2}};
  spec.optimizer = {.name = "adamw"};
  const ContributionRequest batch = SmallBatch(8);
  NamedTensors states[2];
  for (const bool measures : {true, false}) {
    Planning planning(RealClock(), measures ? 60 : 0);
    planning_ = &planning;
    const auto pipeline = Make(spec);
    const auto undo = [&] { return (*metrics_->lane(0).memory)[MemoryKind::kUndo].value(); };
    const double before = undo();
    ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
    EXPECT_EQ(before, measures ? undo() : 0);
    EXPECT_GT(undo(), 0);
    states[measures] = *pipeline->ExportState(/*with_optimizer=*/true);
  }
  ASSERT_EQ(states[0].size(), states[1].size());
  for (size_t i = 0; i < states[0].size(); ++i) {
    EXPECT_TRUE(states[0][i].tensor.equal(states[1][i].tensor)) << states[0][i].name << " is touched, not changed";
  }
}

TEST_F(TracedRunTest, LinksCountWhatWasSent) {
  auto pipeline = Make(Mlp("1f1b"));
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  const auto sent = [&](int from, LinkDescription link) { return metrics_->lane(from).LinkTo(link)->bytes.value(); };
  EXPECT_EQ(sent(0, {.to = 1, .kind = LinkKind::kActivation}), 8 * kTracedWidth * 4);
  EXPECT_EQ(sent(1, {.to = 0, .kind = LinkKind::kGradient}), 8 * kTracedWidth * 4);
  EXPECT_EQ(metrics_->lane(0).LinkTo({.to = 1, .kind = LinkKind::kGradient}), nullptr);
  int64_t nanos = 0;  // by the trace
  const TraceCapture capture = Dump();
  for (const TraceRecord& record : capture.lanes[0].actions) {
    if (record.kind == TraceKind::kSendActivation) nanos += record.end_nanos - record.begin_nanos;
  }
  EXPECT_GT(nanos, 0);
  EXPECT_EQ(metrics_->lane(0).LinkTo({.to = 1, .kind = LinkKind::kActivation})->nanos.value(), nanos);
}

TEST_F(TracedRunTest, EveryMessageHasBothEnds) {
  auto pipeline = Make(Mlp("1f1b"));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  const TraceCapture capture = Dump();
  std::map<uint64_t, const TraceRecord*> sent;
  std::map<uint64_t, const TraceRecord*> received;
  for (const LaneCapture& lane : capture.lanes) {
    for (const TraceRecord& record : lane.actions) {
      if (record.correlation == 0) continue;
      const bool send = record.kind == TraceKind::kSendActivation || record.kind == TraceKind::kSendGradient;
      EXPECT_TRUE((send ? sent : received).emplace(record.correlation, &record).second) << TraceName(record);
    }
  }
  EXPECT_EQ(sent.size(), 3 * 2 * 4);
  ASSERT_EQ(received.size(), sent.size());
  for (const auto& [correlation, record] : sent) {
    ASSERT_EQ(received.count(correlation), 1) << TraceName(*record);
    EXPECT_LE(record->begin_nanos, received.at(correlation)->begin_nanos);
  }
}

TEST_F(TracedRunTest, StatesOfARealRunAreConserved) {
  auto pipeline = Make(Mlp("1f1b"));
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  TraceRecorder recorder(metrics_, TraceRecorder::From::kNow);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  const TraceCapture capture = recorder.Finish();
  EXPECT_FALSE(capture.incomplete);
  EXPECT_EQ(RunsOf(capture).size(), 5);
  for (const LaneCapture& lane : capture.lanes) {
    int64_t at = capture.begin_nanos;
    StateTimes sums;
    for (const TraceRecord& state : lane.states) {
      EXPECT_EQ(state.begin_nanos, at);
      at = state.end_nanos;
      sums.nanos[state.detail] += state.end_nanos - state.begin_nanos;
    }
    EXPECT_EQ(at, capture.end_nanos);
    EXPECT_GT(sums[StageState::kForward], 0);
    for (const StageStateInfo& info : StageStates()) {
      EXPECT_NEAR(lane.after[info.state] - lane.before[info.state], sums[info.state], 1000) << info.name;
    }
    // An action is as long as its state.
    int64_t forward = 0;
    for (const TraceRecord& record : lane.actions) {
      if (record.kind == TraceKind::kForward) forward += record.end_nanos - record.begin_nanos;
    }
    EXPECT_NEAR(forward, sums[StageState::kForward], 1000 * 5 * 4);
  }
}

TEST_F(TracedRunTest, InferenceIsTold) {
  auto pipeline = Make(Mlp("1f1b"));
  ForwardRequest request;
  request.inputs = NamedTensors{{"input", at::randn({4, kTracedWidth})}};
  absl::Notification done;
  pipeline->InferAsync(std::move(request), [&](const auto& outcome) {
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    done.Notify();
  });
  done.WaitForNotification();
  const TraceCapture capture = Dump();
  const std::vector<RunSpan> runs = RunsOf(capture);
  ASSERT_EQ(runs.size(), 1);
  EXPECT_EQ(runs[0].purpose, TraceRun::kInference);
  EXPECT_EQ(runs[0].step, 0);
  EXPECT_EQ(ActionsOf(capture.lanes[1], runs[0].run).at(0), "infer 1F0");
}

class MeasuredScheduleTest : public TracedRunTest, public ::testing::WithParamInterface<std::pair<const char*, int>> {};

TEST_P(MeasuredScheduleTest, EveryActionHasItsPlannedAndItsMeasuredTime) {
  const auto& [kind, chunks] = GetParam();
  auto pipeline = Make(Mlp(kind, chunks));
  ASSERT_NE(pipeline, nullptr);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  const auto planned = PlannedSchedule(pipeline->plan(), 0);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_FALSE(planned->measured.has_value());
  // A step takes as long as its parts but the optimizer, which the plan does not count.
  EXPECT_NEAR(static_cast<double>(planned->planned.makespan_nanos) * 1e-9, pipeline->plan().makespan_seconds, 1e-9);
  EXPECT_NEAR(planned->planned.bubble, pipeline->plan().predicted_bubble, 1e-9);

  const auto measured = MeasuredSchedule(pipeline->plan(), *metrics_, 2);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->step, 2);
  EXPECT_EQ(measured->lanes, 2);
  EXPECT_EQ(measured->stages, 2 * chunks);
  EXPECT_EQ(measured->micro_batches, 4);
  std::set<std::string> seen;
  std::map<int, int64_t> lane_end;
  for (const ScheduledAction& one : measured->actions) {
    seen.insert(ToString(one.action));
    EXPECT_GE(one.measured_start, lane_end[one.lane]) << one.action;
    EXPECT_GE(one.measured_end, one.measured_start);
    lane_end[one.lane] = one.measured_end;
  }
  std::set<std::string> wanted;
  for (const ScheduledAction& one : planned->actions) wanted.insert(ToString(one.action));
  EXPECT_EQ(seen, wanted);
  ASSERT_TRUE(measured->measured.has_value());
  EXPECT_GT(measured->measured->bubble, 0);
  EXPECT_LT(measured->measured->bubble, 1);
  EXPECT_EQ(measured->measured->makespan_nanos, std::max(lane_end[0], lane_end[1]));
  // The norms wait for nobody, neither in the plan nor in the run: a lane's first OPT follows its last gradient.
  for (size_t i = 1; i < measured->actions.size(); ++i) {
    const ScheduledAction& before = measured->actions[i - 1];
    const ScheduledAction& one = measured->actions[i];
    if (one.lane != before.lane || one.action.kind != ActionKind::kOptimizer) continue;
    if (before.action.kind != ActionKind::kOptimizer) {
      EXPECT_EQ(one.planned_start, before.planned_end) << one.action;
    }
  }
  ASSERT_FALSE(measured->deviations.empty());
  for (size_t i = 1; i < measured->deviations.size(); ++i) {
    EXPECT_GE(std::abs(measured->deviations[i - 1].share), std::abs(measured->deviations[i].share));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MeasuredScheduleTest,
                         ::testing::Values(std::pair("1f1b", 1), std::pair("gpipe", 1), std::pair("zb-h1", 1),
                                           std::pair("interleaved-1f1b", 2), std::pair("zbv", 2)));

TEST_F(TracedRunTest, TheLastStepIsMeantIfNoneIsNamed) {
  auto pipeline = Make(Mlp("gpipe"));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  const auto last = MeasuredSchedule(pipeline->plan(), *metrics_, 0);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->step, 3);
  const auto same = MeasuredSchedule(pipeline->plan(), *metrics_, 0, last->run);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->actions.size(), last->actions.size());
}

TEST_F(TracedRunTest, ACaptureHasTheSameMeasuredSchedule) {
  auto pipeline = Make(Mlp("zbv", 2));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  TraceCapture capture = Dump();
  const auto of_rings = MeasuredSchedule(pipeline->plan(), *metrics_, 2);
  const auto of_capture = MeasuredSchedule(pipeline->plan(), capture, 2);
  ASSERT_TRUE(of_rings.ok() && of_capture.ok()) << of_capture.status();
  ASSERT_EQ(of_capture->actions.size(), of_rings->actions.size());
  for (size_t i = 0; i < of_rings->actions.size(); ++i) {
    EXPECT_EQ(of_capture->actions[i].action, of_rings->actions[i].action);
    EXPECT_EQ(of_capture->actions[i].measured_start, of_rings->actions[i].measured_start);
    EXPECT_EQ(of_capture->actions[i].measured_end, of_rings->actions[i].measured_end);
  }
  EXPECT_EQ(of_capture->deviations.size(), of_rings->deviations.size());
  capture.ranks = {{.rank = 1}, {.rank = 2, .missing = true}};
  EXPECT_EQ(Reason(MeasuredSchedule(pipeline->plan(), capture, 2).status()),
            "RANK_LOST: rank 2 has not said what its lanes did");
}

TEST_F(TracedRunTest, AContributionIsComparedWithItsOwnLists) {
  auto pipeline = Make(Mlp("1f1b"));
  ASSERT_TRUE(pipeline->ForwardBackward(SmallBatch(4)).ok());  // one row each: four micro-batches
  ASSERT_TRUE(pipeline->ForwardBackward(SmallBatch(2)).ok());  // two
  ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
  const auto report = MeasuredSchedule(pipeline->plan(), *metrics_, 1);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->micro_batches, 2) << "the last of the step";
  EXPECT_EQ(report->actions.size(), 2 * 2 * 2) << "no optimizer";
}

TEST_F(TracedRunTest, StepsThatCannotBeShownAreNamed) {
  auto pipeline = Make(Mlp("1f1b"), /*ring_events=*/64);
  const auto reason = [&](int64_t step) {
    return Reason(MeasuredSchedule(pipeline->plan(), *metrics_, step).status());
  };
  EXPECT_EQ(reason(0), "STEP_NOT_RETAINED: step: no step has run yet, got 0");
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_EQ(reason(21), "STEP_NOT_RETAINED: step: has not run yet, the last was 20, got 21");
  EXPECT_EQ(reason(1), "STEP_NOT_RETAINED: step: is not in the trace ring any more (--trace-ring-events), got 1");
  EXPECT_TRUE(MeasuredSchedule(pipeline->plan(), *metrics_, 20).ok());
  EXPECT_FALSE(PlannedSchedule(pipeline->plan(), 1 << 20).ok()) << "more than a schedule may have";
}

}  // namespace
}  // namespace penstock
