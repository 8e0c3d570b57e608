// A pipeline on accelerators whose work takes time while the host goes on (fake_streams.h): whatever Penstock counts,
// draws and foresees is the devices' time.

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
#include "engine/base/clock.h"
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
    pool_ = std::make_unique<DevicePool>(devices_, mode);
    PipelineSpec spec;
    const LayerSpec linear{"linear", "", {{"in", kWidth}, {"out", kWidth}}};
    spec.model.layers = {linear, linear};
    spec.cut.balance = {1, 1};
    spec.devices = {"cuda:0", "cuda:1"};
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

  absl::StatusOr<RunOutcome> TrainStep() {
    ContributionRequest request;
    request.inputs = NamedTensors{{"input", at::randn({4, kWidth})}};
    request.target = at::randn({4, kWidth});
    return pipeline_->TrainStep(std::move(request), {});
  }

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
  std::string broken_at_;
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
  EXPECT_THAT(Spans(1, TraceKind::kOptimizer, origin), ElementsAre("70-75", "75-80"));
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
  EXPECT_EQ(In(1, StageState::kDrain), 20);
}

TEST_F(AcceleratorTime, OnThreadsToo) {
  Make(DevicePool::Mode::kThreads, RealClock());
  ASSERT_TRUE(TrainStep().ok());
  // The devices' time passes by itself; no host needs a forward of 10 ms.
  EXPECT_GE(In(0, StageState::kForward), 19.9);
  EXPECT_GE(In(1, StageState::kBackward), 39.9);
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

}  // namespace
}  // namespace penstock
