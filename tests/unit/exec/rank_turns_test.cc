// When an inference over several ranks goes before training: all of them, or none.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/synchronization/blocking_counter.h"
#include "engine/base/thread.h"
#include "tests/unit/exec/watched_ranks.h"

namespace penstock::testing {
namespace {

constexpr int kTurnMicroBatches = 4;

// Two layers that multiply by their parameter. Of the first inference, the layer on the last stage stops at its first
// micro-batch until it may go on.
class RankTurns : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  PipelineSpec Spec() {
    const auto stop = [this](const Batch& inputs, const LayerContext& context, const Tensors& parameters) {
      if (!context.training && !stopped_.HasBeenNotified()) {
        stopped_.Notify();
        beside_training_->Wait();
      }
      return Multiply(inputs, context, parameters);
    };
    PipelineSpec spec = Pipe({Function({.forward = Multiply, .parameters = {{1}}, .name = "first"}),
                              Function({.forward = stop, .parameters = {{1}}, .name = "last"})},
                             {1, 1}, kTurnMicroBatches);
    spec.bubble_filling.inference_share = 1;
    return spec;
  }
  static ForwardRequest Question() { return Ask(NamedTensors{{"input", Range({kTurnMicroBatches, 2})}}); }

  absl::Notification stopped_;
  absl::BlockingCounter* beside_training_ = nullptr;  // when it may go on
  GroupInProcess group_{3, ThreeCpus()};
};

// It is held at its first action on the last stage until that has the next step to do, too, and then goes on beside it.
// By then it has waited for a training run to begin, so it is due, and ends before the weights change.
TEST_P(RankTurns, WhatHasWaitedForAStepToBeginEndsBeforeTheWeightsChange) {
  PipelineSpec spec = Spec();
  spec.bubble_filling.enabled = false;
  absl::BlockingCounter until_beside_training(2 * kTurnMicroBatches + 2 * kTurnMicroBatches);
  beside_training_ = &until_beside_training;
  Pipeline::Options options;
  options.before_action = [&](const Action& action) {
    if (action.stage == 0 && action.kind == ActionKind::kForward) until_beside_training.DecrementCount();
  };
  options.watch_passes = [&](const PassEvent& event) {
    if (event.when == PassEvent::When::kLeftOver && event.lane == 1) until_beside_training.DecrementCount();
  };
  const auto pipeline = MakeOver(group_, spec, GetParam(), std::move(options));
  const ContributionRequest batch = Contribution(Range({kTurnMicroBatches, 2}), Range({kTurnMicroBatches, 2}));
  ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
  Inference question;
  question.Ask(*pipeline, Question());
  stopped_.WaitForNotification();
  ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
  ASSERT_TRUE(question.Answer().ok()) << question.answer.status();
  EXPECT_EQ(question.answer->step, 1);
}

// A training run may begin while an inference is being told to the ranks: one that has not heard of it knows no turn of its.
TEST(RankTurnsAtTheStart, WhatIsDueBeforeARankHearsOfItIsToldAgain) {
  PipelineSpec spec = Pipe({Function({.forward = Multiply, .parameters = {{1}}, .name = "first"}),
                            Function({.forward = Multiply, .parameters = {{1}}, .name = "last"})},
                           {1, 1}, kTurnMicroBatches);
  spec.bubble_filling.inference_share = 1;
  spec.bubble_filling.enabled = false;
  WatchedGroup group(2);
  const auto pipeline = MakeOver(group, spec, {0, 1});
  const ContributionRequest batch = Contribution(Range({kTurnMicroBatches, 2}), Range({kTurnMicroBatches, 2}));
  ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
  absl::Notification starts, due;
  std::atomic<int> told = 0;
  group.hooks.on_command = [&](std::string_view command, Rank) {
    if (command == "Start" && !starts.HasBeenNotified()) {
      starts.Notify();
      due.WaitForNotification();
    }
    if (command != "BeDue" || told++ > 0) return absl::OkStatus();
    due.Notify();
    return absl::Status(absl::NotFoundError("the run is not open there"));
  };
  Inference question;
  const Thread asks("asks", [&] {
    question.Ask(*pipeline, Ask(NamedTensors{{"input", Range({kTurnMicroBatches, 2})}}));
  });
  starts.WaitForNotification();
  ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
  ASSERT_TRUE(question.Answer().ok()) << question.answer.status();
  EXPECT_EQ(told, 2);
}

INSTANTIATE_TEST_SUITE_P(Placements, RankTurns,
                         ::testing::Values(std::vector<int>{0, 1}, std::vector<int>{1, 0}, std::vector<int>{1, 2}));

}  // namespace
}  // namespace penstock::testing
