// A lane does not begin an action of a run while one that goes before it is on its way there.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;

constexpr int64_t kFirstNanos = 1'000'000;   // of an action of the first stage
constexpr int64_t kSecondNanos = 5'000'000;  // of the second one

// Where a call stands in a stage until a test lets it go on.
struct Stop {
  absl::Notification reached;
  absl::Notification go_on;
};

// Two stages on threads of their own, whose actions take as long as a clock says that only they move, at their begin.
class InferenceArrivals : public ::testing::Test {
 protected:
  using Key = std::pair<int, int>;  // stage, call

  void SetUp() override {
    PipelineSpec spec = testing::Pipe({Layer(0, kFirstNanos), Layer(1, kSecondNanos)}, {1, 1});
    spec.schedule.kind = "1f1b";
    Pipeline::Options options;
    options.devices = &pool_;
    options.clock = &clock_;
    options.profile = {.rows = 1, .repeats = 1};
    auto pipeline = Pipeline::Create(spec, options);
    ASSERT_TRUE(pipeline.ok()) << pipeline.status();
    pipeline_ = *std::move(pipeline);
    Ask(0, 0);  // shows what actions take
    answered_[0].WaitForNotification();
    second_.clear();
  }
  void TearDown() override {
    for (auto& [key, stop] : stops_) {
      if (!stop.go_on.HasBeenNotified()) stop.go_on.Notify();
    }
    for (absl::Notification* done : asked_) done->WaitForNotification();
  }

  LayerSpec Layer(int stage, int64_t nanos) {
    return testing::Function([this, stage, nanos](const Batch& inputs, const LayerContext&, const Tensors&) {
      const int call = static_cast<int>(inputs[0].tensor()->item<float>());
      clock_.AdvanceNanos(nanos);
      if (stage == 1) second_.push_back(call);
      const auto stop = stops_.find({stage, call});
      if (stop != stops_.end()) {
        stop->second.reached.Notify();
        stop->second.go_on.WaitForNotification();
      }
      return inputs;
    });
  }
  void Ask(int call, int32_t priority) {
    ForwardRequest request;
    request.inputs = NamedTensors{{"input", at::full({1, 1}, static_cast<float>(call))}};
    request.micro_batches = 1;
    request.priority = priority;
    asked_.push_back(&answered_[call]);
    pipeline_->InferAsync(std::move(request), [this, call](const absl::StatusOr<ForwardOutcome>& outcome) {
      EXPECT_TRUE(outcome.ok()) << outcome.status();
      answered_[call].Notify();
    });
  }

  FakeClock clock_;
  std::map<Key, Stop> stops_;  // set before the call
  std::map<int, absl::Notification> answered_;
  std::vector<absl::Notification*> asked_;
  std::vector<int> second_;  // calls in the order in which the second stage took them; read when all are answered
  DevicePool pool_{{{"cpu:0", {}, 0}, {"cpu:1", {}, 0}}, DevicePool::Mode::kThreads};
  std::unique_ptr<Pipeline> pipeline_;
};

TEST_F(InferenceArrivals, TheSecondStageWaitsForTheRunThatGoesFirst) {
  Stop& busy = stops_[{1, 1}];
  Stop& next = stops_[{0, 2}];
  Stop& urgent = stops_[{0, 3}];
  for (const int call : {1, 2, 3}) answered_[call];
  Ask(1, 0);
  busy.reached.WaitForNotification();
  Ask(2, 0);
  next.reached.WaitForNotification();
  Ask(3, 1);
  next.go_on.Notify();  // to the second stage, which is busy
  urgent.reached.WaitForNotification();
  busy.go_on.Notify();
  answered_[1].WaitForNotification();  // the second stage looks what to do now
  urgent.go_on.Notify();
  for (const int call : {2, 3}) answered_[call].WaitForNotification();
  EXPECT_THAT(second_, ElementsAre(1, 3, 2));
}

}  // namespace
}  // namespace penstock
