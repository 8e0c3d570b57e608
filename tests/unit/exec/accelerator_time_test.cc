// A pipeline on accelerators whose work takes time while the host goes on (fake_streams.h): whatever Penstock counts,
// draws and foresees is the devices' time.

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/device/accelerators.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/observe/metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/stand_in_device.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;
using testing::FakeStreams;
using ::testing::HasSubstr;
using testing::StandInStreams;

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kWidth = 4;

std::vector<Device> Devices() {
  OpenAccelerators({}, {.driver = "libm.so.6", .module = FAKE_MODULE});
  Device first{.name = "cuda:0", .cores = {0}};
  first.kind = DeviceKind::kCuda;
  Device second = first;
  second.name = "cuda:1";
  second.index = 1;
  return {first, second};
}

// A forward takes 10 ms, a backward 20 ms, the end of a step 5 ms.
int64_t CostOf(ActionKind kind) {
  return kMilli * (kind == ActionKind::kForward ? 10 : kind == ActionKind::kBackward ? 20 : 5);
}

class AcceleratorTime : public ::testing::Test {
 protected:
  ~AcceleratorTime() override {
    for (int stage = 0; stage < 2; ++stage) StreamsOfStage(stage).KeepTime({});
  }

  StandInStreams& StreamsOfStage(int stage) { return static_cast<StandInStreams&>(StreamsOf(devices_[stage])); }

  void Make(DevicePool::Mode mode, Clock* clock) {
    for (int stage = 0; stage < 2; ++stage) {
      StreamsOfStage(stage).KeepTime({.now = [clock] { return clock->NowNanos(); },
                                      .pass = [this](int64_t nanos) { clock_.AdvanceNanos(nanos); }});
    }
    std::vector<Device> devices = devices_;
    devices.push_back({.name = "cpu:0", .cores = {0}});
    pool_ = std::make_unique<DevicePool>(devices, mode);
    PipelineSpec spec;
    const LayerSpec linear{"linear", "", {{"in", kWidth}, {"out", kWidth}}};
    spec.model.layers = {linear, linear};
    spec.cut.balance = {1, 1};
    spec.devices = {"cuda:0", second_device_};
    spec.schedule = {"1f1b", 2, CheckpointMode::kNever};
    spec.optimizer = {.name = "sgd"};
    spec.loss.name = "mean_squared_error";
    Pipeline::Options options;
    options.devices = pool_.get();
    options.clock = clock;
    options.profile = {.rows = 2, .repeats = 1};
    options.before_action = [this](const Action& action) {
      if (broken_at_ == ToString(action)) throw std::runtime_error("broken");
      StreamsOfStage(action.stage).Work(CostOf(action.kind));
      if (fault_at_ != ToString(action) || --faults_after_ > 0) return;
      look_fails_ ? StreamsOfStage(action.stage).FailLooks(1) : StreamsOfStage(action.stage).Fault();
    };
    options.fault_point = [this](FaultPoint point, int stage) {
      if (at_point_) at_point_(point, stage);
    };
    options.metrics = [this, clock](const Plan& plan) {
      std::vector<LaneDescription> lanes(plan.stages.size());
      for (size_t i = 0; i < lanes.size(); ++i) lanes[i].lane = static_cast<int>(i);
      return metrics_ = std::make_shared<PipelineMetrics>(clock, "", lanes, ScheduleDescription());
    };
    auto made = Pipeline::Create(spec, std::move(options));
    ASSERT_TRUE(made.ok()) << made.status();
    pipeline_ = *std::move(made);
  }

  static ContributionRequest Request() {
    ContributionRequest request;
    request.inputs = NamedTensors{{"input", at::randn({4, kWidth})}};
    request.target = at::randn({4, kWidth});
    return request;
  }
  absl::StatusOr<RunOutcome> TrainStep() { return pipeline_->TrainStep(Request(), {}); }

  // Milliseconds of a lane in a state.
  double In(int lane, StageState state) {
    return static_cast<double>(metrics_->lane(lane).state.Snapshot()[state]) / kMilli;
  }

  // The actions of a lane, in milliseconds from `origin`.
  std::vector<std::string> Spans(int lane, TraceKind kind, int64_t origin) {
    const TraceRing& ring = metrics_->lane(lane).trace.actions;
    std::vector<TraceRecord> records;
    ring.Read(0, ring.written(), &records);
    std::vector<std::string> spans;
    for (const TraceRecord& record : records) {
      if (record.kind != kind) continue;
      spans.push_back(absl::StrCat((record.begin_nanos - origin) / kMilli, "-", (record.end_nanos - origin) / kMilli));
    }
    return spans;
  }

  const std::vector<Device> devices_ = Devices();
  FakeClock clock_;
  std::string second_device_ = "cuda:1";
  std::string broken_at_;
  std::function<void(FaultPoint, int)> at_point_;
  std::string fault_at_;     // the end of this action's work
  int faults_after_ = 1;     // of those that are so called
  bool look_fails_ = false;  // instead
  std::shared_ptr<PipelineMetrics> metrics_;
  std::unique_ptr<DevicePool> pool_;
  std::unique_ptr<Pipeline> pipeline_;
};

// The host launches the whole step without any time passing:
//     stage 0:  F0 0-10  F1 10-20            B0 40-60   B1 70-90
//     stage 1:           F0 10-20  B0 20-40  F1 40-50   B1 50-70
// and then three parts of 5 ms that end the step, of which each stage runs two.
TEST_F(AcceleratorTime, AStepTakesWhatTheDevicesTake) {
  Make(DevicePool::Mode::kSerial, &clock_);
  const int64_t origin = clock_.NowNanos();
  const auto outcome = TrainStep();
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_DOUBLE_EQ(outcome->seconds, 0.1);
  EXPECT_THAT(Spans(0, TraceKind::kForward, origin), ElementsAre("0-10", "10-20"));
  EXPECT_THAT(Spans(1, TraceKind::kForward, origin), ElementsAre("10-20", "40-50"));
  EXPECT_THAT(Spans(1, TraceKind::kBackward, origin), ElementsAre("20-40", "50-70"));
  EXPECT_THAT(Spans(0, TraceKind::kBackward, origin), ElementsAre("40-60", "70-90"));
  EXPECT_THAT(Spans(0, TraceKind::kOptimizer, origin), ElementsAre("90-95", "95-100"));
  EXPECT_THAT(Spans(1, TraceKind::kOptimizer, origin), ElementsAre("70-75", "95-100")) << "once all norms are there";
  for (int lane = 0; lane < 2; ++lane) {
    EXPECT_EQ(In(lane, StageState::kForward), 20);
    EXPECT_EQ(In(lane, StageState::kBackward), 40);
    EXPECT_EQ(In(lane, StageState::kOptimizer), 10);
    EXPECT_EQ(metrics_->lane(lane).state.clamped_nanos(), 0);
    const auto forwards = metrics_->lane(lane).phases[Phase::kForward].Snapshot();
    EXPECT_EQ(forwards.count(), 2);
    EXPECT_EQ(forwards.sum_nanos, 20 * kMilli);
  }
  EXPECT_EQ(In(0, StageState::kWaitGradient), 30);
  EXPECT_EQ(In(1, StageState::kFill), 10);
  EXPECT_EQ(In(1, StageState::kSync), 20);
}

TEST_F(AcceleratorTime, OnThreadsToo) {
  Make(DevicePool::Mode::kThreads, RealClock());
  ASSERT_TRUE(TrainStep().ok());
  // The devices' time passes by itself; no host needs a forward of 10 ms.
  EXPECT_GE(In(0, StageState::kForward), 19.9);
  EXPECT_GE(In(1, StageState::kBackward), 39.9);
}

// Others' actions are launched while the norms are made.
TEST_F(AcceleratorTime, NoThreadOfADeviceWaitsInAStep) {
  Make(DevicePool::Mode::kThreads, RealClock());
  const auto waits = [this] { return StreamsOfStage(0).host_waits() + StreamsOfStage(1).host_waits(); };
  const int64_t before = waits();
  ASSERT_TRUE(TrainStep().ok());
  EXPECT_EQ(waits(), before);
}

TEST_F(AcceleratorTime, AFailedRunLeavesNoEvent) {
  Make(DevicePool::Mode::kSerial, &clock_);
  ASSERT_TRUE(TrainStep().ok());
  const int64_t origin = clock_.NowNanos();
  broken_at_ = "1F1";
  EXPECT_FALSE(TrainStep().ok());
  // Those that the next are measured from.
  EXPECT_EQ(StreamsOfStage(0).open_events(), 1);
  EXPECT_EQ(StreamsOfStage(1).open_events(), 1);
  EXPECT_EQ(In(1, StageState::kForward), 30) << "the action that failed took nothing";
  broken_at_.clear();
  EXPECT_LE(clock_.NowNanos(), origin + 60 * kMilli);
  ASSERT_TRUE(TrainStep().ok());
  pipeline_ = nullptr;
  EXPECT_EQ(StreamsOfStage(0).open_events(), 0);
  EXPECT_EQ(StreamsOfStage(1).open_events(), 0);
}

// --- Work that fails behind the host's back.

constexpr char kFault[] = "illegal memory access";

TEST_F(AcceleratorTime, AStepWhoseWorkFailsIsNoStep) {
  struct Case {
    const char* action;
    int part;  // of a step's end
    bool changed;
  };
  for (const Case& one :
       {Case{"0F0", 1, false}, Case{"1F1", 1, false}, Case{"1B0", 1, false}, Case{"0B1", 1, false},
        Case{"0OPT", 1, false}, Case{"1OPT", 1, false}, Case{"0OPT", 2, true}, Case{"1OPT", 2, true}}) {
    Make(DevicePool::Mode::kSerial, &clock_);
    ASSERT_TRUE(TrainStep().ok());
    const int64_t steps = pipeline_->step();
    const int failing = one.action[0] - '0';
    const int64_t asked = StreamsOfStage(failing).synchronized();
    fault_at_ = one.action;
    faults_after_ = one.part;
    const auto outcome = TrainStep();
    SCOPED_TRACE(absl::StrCat(one.action, " part ", one.part));
    ASSERT_FALSE(outcome.ok());
    EXPECT_THAT(std::string(outcome.status().message()), HasSubstr(kFault));
    const bool in_step = std::string_view(one.action).ends_with("OPT") && !one.changed;
    EXPECT_EQ(ValuesOf(outcome.status()).count("step_part"), in_step ? 1u : 0u) << outcome.status();
    EXPECT_EQ(pipeline_->step(), steps);
    EXPECT_EQ(ReasonOf(pipeline_->health()), one.changed ? "PIPELINE_BROKEN" : "");
    EXPECT_GT(StreamsOfStage(failing).synchronized(), asked);
    EXPECT_EQ(pool_->LostDevice(), "cuda:0");  // found in the first case
    fault_at_.clear();
    pipeline_ = nullptr;
    EXPECT_EQ(StreamsOfStage(0).open_events(), 0);
    EXPECT_EQ(StreamsOfStage(1).open_events(), 0);
  }
}

TEST_F(AcceleratorTime, AContributionWhoseLastBackwardFailsAddsNothing) {
  Make(DevicePool::Mode::kSerial, &clock_);
  fault_at_ = "0B1";
  const auto outcome = pipeline_->ForwardBackward(Request());
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr(kFault));
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("action 0B1"));
  EXPECT_EQ(pipeline_->AccumulationBytes(), 0);
}

TEST_F(AcceleratorTime, AForwardAndABackwardWhoseWorkFailsGiveNothing) {
  for (const char* action : {"1F1", "0B1"}) {
    Make(DevicePool::Mode::kSerial, &clock_);
    fault_at_ = action;
    ForwardRequest request;
    request.inputs = NamedTensors{{"input", at::randn({4, kWidth})}};
    auto forward = pipeline_->Forward(std::move(request));
    EXPECT_EQ(forward.ok(), action == std::string("0B1")) << forward.status();
    const absl::Status status =
        !forward.ok()
            ? forward.status()
            : pipeline_->Backward(forward->graph, {{"output", at::ones({4, kWidth})}}, /*retain_graph=*/false).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(kFault));
  }
}

TEST_F(AcceleratorTime, AnInferenceAndAnEvaluationWhoseWorkFailsGiveNothing) {
  for (const bool evaluates : {false, true}) {
    Make(DevicePool::Mode::kSerial, &clock_);
    StreamsOfStage(1).Work(kMilli);  // before it; the host does not wait for that
    StreamsOfStage(1).Fault();
    absl::Status status;
    absl::Notification done;
    if (evaluates) {
      EvaluationRequest request;
      request.batch = Request();
      pipeline_->EvaluateAsync(std::move(request), [&](const absl::StatusOr<RunOutcome>& outcome) {
        status = outcome.status();
        done.Notify();
      });
    } else {
      ForwardRequest request;
      request.inputs = NamedTensors{{"input", at::randn({4, kWidth})}};
      pipeline_->InferAsync(std::move(request), [&](const absl::StatusOr<ForwardOutcome>& outcome) {
        status = outcome.status();
        done.Notify();
      });
    }
    pool_->Wait(done);
    EXPECT_THAT(std::string(status.message()), HasSubstr(kFault)) << evaluates;
  }
}

TEST_F(AcceleratorTime, OnThreadsWorkThatFailsFailsTheStepToo) {
  Make(DevicePool::Mode::kThreads, RealClock());
  fault_at_ = "0OPT";
  faults_after_ = 2;
  EXPECT_THAT(std::string(TrainStep().status().message()), HasSubstr(kFault));
  EXPECT_EQ(pipeline_->step(), 0);
}

TEST_F(AcceleratorTime, AnUndoThatFailsBehindTheHostIsNone) {
  Make(DevicePool::Mode::kSerial, &clock_);
  ASSERT_TRUE(TrainStep().ok());
  at_point_ = [this](FaultPoint point, int stage) {
    if (point == FaultPoint::kUpdate && stage == 1) throw std::runtime_error("broken");
    if (point != FaultPoint::kUndo || stage != 1) return;
    StreamsOfStage(1).Work(kMilli);
    StreamsOfStage(1).Fault();
  };
  EXPECT_FALSE(TrainStep().ok());
  EXPECT_EQ(ReasonOf(pipeline_->health()), "PIPELINE_BROKEN");
  EXPECT_THAT(std::string(pipeline_->health().message()), HasSubstr(kFault));
}

// What comes from a device may fail where it is awaited, by a lane of another one.
TEST_F(AcceleratorTime, EveryDeviceOfThePipelineIsAskedWhetherItLives) {
  second_device_ = "cpu:0";
  Make(DevicePool::Mode::kSerial, &clock_);
  ASSERT_TRUE(TrainStep().ok());
  const int64_t asked = StreamsOfStage(0).synchronized();
  broken_at_ = "1F1";
  EXPECT_FALSE(TrainStep().ok());
  EXPECT_GT(StreamsOfStage(0).synchronized(), asked);
}

// The device does its work, and the step is undone.
TEST_F(AcceleratorTime, AStepThatOneLookFailsIsRolledBack) {
  Make(DevicePool::Mode::kSerial, &clock_);
  ASSERT_TRUE(TrainStep().ok());
  const NamedTensors before = pipeline_->ExportState(/*with_optimizer=*/true).value();
  fault_at_ = "1OPT";
  faults_after_ = 2;
  look_fails_ = true;
  const auto outcome = TrainStep();
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(ReasonOf(outcome.status()), "STEP_ROLLED_BACK") << outcome.status();
  const NamedTensors after = pipeline_->ExportState(/*with_optimizer=*/true).value();
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(at::equal(after[i].tensor, before[i].tensor));
  fault_at_.clear();
  EXPECT_TRUE(TrainStep().ok());
}

}  // namespace
}  // namespace penstock
