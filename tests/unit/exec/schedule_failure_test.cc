// Failures and cancellations at every action of every kind of schedule: the first error says where, and nothing is
// lost.

#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/plan/planner.h"
#include "tests/unit/exec/function_layers.h"
#include "tests/unit/exec/schedule_cases.h"

namespace penstock::testing {
namespace {

using ::testing::HasSubstr;

// Runs every action, but one that it is told to break, or at which it is told to cancel.
class Saboteur {
 public:
  explicit Saboteur(DevicePool::Mode mode) : world(mode) {
    world.before_action = [this](const Action& action) {
      absl::MutexLock lock(&mu_);
      seen_.emplace(ToString(action), action);
      if (ToString(action) != target_) return;
      if (cancel_ != nullptr) return cancel_->Cancel();
      throw std::runtime_error("sabotage");
    };
  }

  void Break(const std::string& action) {
    absl::MutexLock lock(&mu_);
    target_ = action;
    cancel_ = nullptr;
  }
  std::shared_ptr<CancelToken> CancelAt(const std::string& action) {
    absl::MutexLock lock(&mu_);
    target_ = action;
    return cancel_ = std::make_shared<CancelToken>();
  }
  std::map<std::string, Action> Seen() {
    absl::MutexLock lock(&mu_);
    return seen_;
  }

  PipeWorld world;

 private:
  absl::Mutex mu_;
  std::map<std::string, Action> seen_ ABSL_GUARDED_BY(mu_);
  std::string target_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<CancelToken> cancel_ ABSL_GUARDED_BY(mu_);
};

std::vector<ScheduleCase> SplitAndChunkedCases() {
  return {{.kind = "interleaved-1f1b", .lanes = 2, .chunks = 2}, {.kind = "zb-h1", .lanes = 3},
          {.kind = "interleaved-zb", .lanes = 2, .chunks = 2},   {.kind = "zbv", .lanes = 2, .chunks = 2},
          {.kind = "dualpipe-v", .lanes = 1, .chunks = 2},       {.kind = "auto", .lanes = 3}};
}

constexpr int kFailureMicroBatches = 4;

ContributionRequest MiniBatch() {
  return Contribution(Range({2 * kFailureMicroBatches, kCaseWidth}),
                      Range({2 * kFailureMicroBatches, kCaseWidth}).sin());
}

TEST(ScheduleFailure, AnErrorInAnyActionNamesItAndChangesNothing) {
  std::set<ActionKind> broken;
  for (const DevicePool::Mode mode : {DevicePool::Mode::kSerial, DevicePool::Mode::kThreads}) {
    for (const ScheduleCase& one : SplitAndChunkedCases()) {
      SCOPED_TRACE(Describe(one));
      Saboteur saboteur(mode);
      const PipelineSpec spec = SpecOf(one, kFailureMicroBatches, CheckpointMode::kExceptLast);
      auto pipeline = saboteur.world.Make(spec);
      PlainReference plain = PlainOf(spec);
      const auto step = [&] {
        const auto got = pipeline->TrainStep(MiniBatch(), {});
        ASSERT_TRUE(got.ok()) << got.status();
        const auto want =
            plain.TrainStep({*MiniBatch().inputs[0].value.tensor()}, MiniBatch().target, kFailureMicroBatches);
        EXPECT_EQ(*got->loss, want.loss);
        EXPECT_EQ(*got->gradient_norm, want.gradient_norm);
        EXPECT_TRUE(SameState(*pipeline, plain));
      };
      step();
      for (const auto& [text, action] : saboteur.Seen()) {
        SCOPED_TRACE(text);
        saboteur.Break(text);
        const absl::Status status = pipeline->TrainStep(MiniBatch(), {}).status();
        EXPECT_THAT(std::string(status.message()), HasSubstr("sabotage"));
        EXPECT_EQ(ValuesOf(status)["stage"], absl::StrCat(action.stage));
        EXPECT_EQ(ValuesOf(status)["micro_batch"], absl::StrCat(action.micro_batch));
        EXPECT_EQ(ValuesOf(status)["action"], text);
        EXPECT_TRUE(SameState(*pipeline, plain));
        broken.insert(action.kind);
      }
      saboteur.Break("");
      step();
    }
  }
  EXPECT_EQ(broken.size(), 6u);  // F, B, I, W, R, OPT
}

TEST(ScheduleFailure, WhatWasAccumulatedBeforeOutlastsAnErrorInAnyAction) {
  for (const ScheduleCase& one : SplitAndChunkedCases()) {
    SCOPED_TRACE(Describe(one));
    Saboteur saboteur(DevicePool::Mode::kSerial);
    const PipelineSpec spec = SpecOf(one, kFailureMicroBatches, CheckpointMode::kSkipAdjacent);
    auto pipeline = saboteur.world.Make(spec);
    PlainReference plain = PlainOf(spec);
    ASSERT_TRUE(pipeline->ForwardBackward(MiniBatch()).ok());
    plain.Contribute({*MiniBatch().inputs[0].value.tensor()}, MiniBatch().target, kFailureMicroBatches);
    for (const auto& [text, action] : saboteur.Seen()) {
      saboteur.Break(text);
      EXPECT_FALSE(pipeline->ForwardBackward(MiniBatch()).ok()) << text;
    }
    saboteur.Break("");
    ASSERT_TRUE(pipeline->ForwardBackward(MiniBatch()).ok());
    plain.Contribute({*MiniBatch().inputs[0].value.tensor()}, MiniBatch().target, kFailureMicroBatches);
    const auto applied = pipeline->OptimizerStep({});
    ASSERT_TRUE(applied.ok()) << applied.status();
    EXPECT_EQ(*applied->gradient_norm, plain.Step().gradient_norm);
    EXPECT_TRUE(SameState(*pipeline, plain));
  }
}

TEST(ScheduleFailure, ACancelledContributionAddsNothing) {
  for (const DevicePool::Mode mode : {DevicePool::Mode::kSerial, DevicePool::Mode::kThreads}) {
    for (const ScheduleCase& one : SplitAndChunkedCases()) {
      SCOPED_TRACE(Describe(one));
      Saboteur saboteur(mode);
      const PipelineSpec spec = SpecOf(one, kFailureMicroBatches, CheckpointMode::kNever);
      auto pipeline = saboteur.world.Make(spec);
      PlainReference plain = PlainOf(spec);
      ASSERT_TRUE(pipeline->ForwardBackward(MiniBatch()).ok());
      plain.Contribute({*MiniBatch().inputs[0].value.tensor()}, MiniBatch().target, kFailureMicroBatches);
      for (const auto& [text, action] : saboteur.Seen()) {
        ContributionRequest request = MiniBatch();
        request.cancel = saboteur.CancelAt(text);
        const absl::Status status = pipeline->ForwardBackward(request).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << text << " " << status;
      }
      saboteur.Break("");
      const auto applied = pipeline->OptimizerStep({});
      ASSERT_TRUE(applied.ok()) << applied.status();
      EXPECT_EQ(*applied->gradient_norm, plain.Step().gradient_norm);
      EXPECT_TRUE(SameState(*pipeline, plain));
    }
  }
}

}  // namespace
}  // namespace penstock::testing
