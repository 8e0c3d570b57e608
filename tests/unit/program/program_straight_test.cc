// Inputs that go straight to the stages that use them, and outputs that leave where they are made: how many bytes cross
// between stages, and that nothing else changes by it.

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/observe/metrics.h"
#include "tests/unit/program/pipeline_examples.h"

namespace penstock::testing {
namespace {

constexpr int64_t kStraightRows = 7;  // in three micro-batches: 3, 3 and 1
constexpr int kStraightMicroBatches = 3;
constexpr int64_t kRowBytes = 4 * 4;  // of what goes from block to block
constexpr int64_t kScaleBytes = 4;    // of a row: the first stage and the last one use it
constexpr int64_t kCacheBytes = 5 * 4 * 4;

struct Running {
  std::shared_ptr<PipelineMetrics> metrics;
  std::unique_ptr<Pipeline> pipeline;

  int64_t Sent() const {
    double bytes = 0;
    for (int lane = 0; lane < static_cast<int>(pipeline->plan().stages.size()); ++lane) {
      for (const auto& link : metrics->lane(lane).links) bytes += static_cast<double>(link->bytes.value());
    }
    return static_cast<int64_t>(bytes);
  }
};

// The layers are the stem, what is behind it, three blocks, and the head.
const std::vector<std::vector<int>> kCuts = {{3, 2}, {2, 1, 2}, {1, 2, 2}, {1, 1, 1, 1, 1}};

class StraightValues : public ::testing::Test {
 protected:
  StraightValues() { at::set_num_threads(1); }

  Running Make(const std::vector<int>& balance, bool straight, CheckpointMode mode = CheckpointMode::kExceptLast,
               const std::string& schedule = "1f1b", std::function<void(const Action&)> before = {},
               ProgramCuts cuts = ProgramCuts::kModules) {
    PipelineSpec spec = ProgramSpec(example_, 1, {schedule, kStraightMicroBatches, mode}, cuts);
    spec.cut.balance = balance;
    Running made;
    Pipeline::Options options;
    options.before_action = std::move(before);
    options.metrics = [&](const Plan& plan) {
      std::vector<LaneDescription> lanes;
      for (int lane = 0; lane < static_cast<int>(plan.stages.size()); ++lane) {
        LaneDescription& one = lanes.emplace_back(LaneDescription{.lane = lane, .device = "cpu:0"});
        for (int to = 0; to < static_cast<int>(plan.stages.size()); ++to) {
          if (to != lane)
            one.links.push_back({.to = to, .kind = to > lane ? LinkKind::kActivation : LinkKind::kGradient});
        }
      }
      return made.metrics = std::make_shared<PipelineMetrics>(RealClock(), "", lanes, ScheduleDescription());
    };
    if (!straight) {
      options.edits.plan = [](Plan& plan) {
        for (SkipRoute& route : plan.skips) {
          route.inputs.clear();
          route.outputs.clear();
        }
      };
    }
    auto pipeline = MakeProgramPipeline(spec, pool_, std::move(options));
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    if (pipeline.ok()) made.pipeline = *std::move(pipeline);
    return made;
  }

  absl::StatusOr<NamedValues> Infer(Pipeline& pipeline, const NamedTensors& inputs,
                                    const std::vector<std::string>& outputs = {}) {
    absl::Notification done;
    absl::StatusOr<NamedValues> found;
    pipeline.InferAsync({.inputs = inputs, .micro_batches = {}, .outputs = outputs, .cancel = {}},
                        [&](absl::StatusOr<ForwardOutcome> outcome) {
                          found = outcome.ok() ? absl::StatusOr<NamedValues>(outcome->outputs) : outcome.status();
                          done.Notify();
                        });
    pool_.Wait(done);
    return found;
  }

  ContributionRequest Batch() const {
    ContributionRequest request;
    request.inputs = NamedTensors(example_.inputs);
    request.target = example_.target;
    return request;
  }

  static void ExpectSame(const NamedValues& found, const NamedValues& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].name, wanted[i].name);
      ASSERT_EQ(found[i].value.is_tensor(), wanted[i].value.is_tensor()) << found[i].name;
      if (!found[i].value.is_tensor()) continue;
      EXPECT_TRUE(at::equal(*found[i].value.tensor(), *wanted[i].value.tensor())) << found[i].name;
    }
  }
  static void ExpectSame(const NamedTensors& found, const NamedTensors& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].name, wanted[i].name);
      EXPECT_TRUE(at::equal(found[i].tensor, wanted[i].tensor)) << found[i].name;
    }
  }

  ProgramExample example_ = CachedExample(kStraightRows);
  DevicePool pool_{{{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kSerial};
};

TEST_F(StraightValues, OnlyWhatALaterStageNeedsCrosses) {
  for (const std::vector<int>& balance : kCuts) {
    SCOPED_TRACE(::testing::PrintToString(balance));
    const auto cuts = static_cast<int64_t>(balance.size()) - 1;
    Running straight = Make(balance, true);
    Running through = Make(balance, false);
    const auto found = Infer(*straight.pipeline, example_.inputs);
    const auto wanted = Infer(*through.pipeline, example_.inputs);
    ASSERT_TRUE(found.ok() && wanted.ok()) << found.status() << wanted.status();
    ExpectSame(*found, *wanted);
    EXPECT_EQ(straight.Sent(), kStraightRows * (cuts * kRowBytes + kScaleBytes));
    EXPECT_GE(through.Sent(), straight.Sent() + kStraightRows * (3 * kCacheBytes + kRowBytes))
        << "three caches, in or out";
    int64_t predicted = 0;
    for (const StagePlan& stage : straight.pipeline->plan().stages) predicted += stage.input_bytes;
    int64_t caches = 0;  // that are held where they are used
    for (const SkipRoute& route : straight.pipeline->plan().skips) caches += std::ssize(route.inputs);
    EXPECT_GE(caches, 1);
    EXPECT_EQ(predicted, 2 * (cuts * kRowBytes + kScaleBytes + caches * kCacheBytes)) << "of two rows";
  }
}

TEST_F(StraightValues, AChainOfCallsGivesTheSame) {
  Running straight = Make({2, 1, 2}, true);
  Running one = Make({5}, true);
  NamedTensors inputs = example_.inputs;
  NamedTensors plain = example_.inputs;
  for (int call = 0; call < 5; ++call) {
    const auto found = Infer(*straight.pipeline, inputs);
    const auto wanted = Infer(*one.pipeline, plain);
    ASSERT_TRUE(found.ok() && wanted.ok()) << found.status() << wanted.status();
    ExpectSame(*found, *wanted);
    for (int i = 1; i <= 3; ++i) {
      inputs[i].tensor = *found->at(i).value.tensor();
      plain[i].tensor = *wanted->at(i).value.tensor();
    }
  }
}

TEST_F(StraightValues, WhatIsAskedForLeavesInItsOrder) {
  Running straight = Make({2, 1, 2}, true);
  const auto all = Infer(*straight.pipeline, example_.inputs);
  ASSERT_TRUE(all.ok()) << all.status();
  const std::vector<std::string> names = {all->at(2).name, all->at(0).name, all->at(1).name};
  const auto some = Infer(*straight.pipeline, example_.inputs, names);
  ASSERT_TRUE(some.ok()) << some.status();
  NamedValues wanted;
  for (const int i : {2, 0, 1}) wanted.push_back(all->at(i));
  ExpectSame(*some, wanted);
}

TEST_F(StraightValues, AnInputThatDoesNotFitIsRefusedByTheFirstStage) {
  Running straight = Make({2, 1, 2}, true);
  NamedTensors inputs = example_.inputs;
  inputs[3].tensor = at::randn({kStraightRows, 6, 4});  // longer than the other caches
  const auto refused = Infer(*straight.pipeline, inputs);
  EXPECT_EQ(ReasonOf(refused.status()), "TENSOR_SIGNATURE") << refused.status();
  EXPECT_EQ(ValuesOf(refused.status())["stage"], "0");
  EXPECT_TRUE(Infer(*straight.pipeline, example_.inputs).ok());
}

TEST_F(StraightValues, TrainingIsTheSame) {
  for (const std::vector<int>& balance : kCuts) {
    for (const CheckpointMode mode : {CheckpointMode::kAlways, CheckpointMode::kNever}) {
      for (const std::string schedule : {"gpipe", "1f1b", "zb-h1"}) {
        SCOPED_TRACE(absl::StrCat(::testing::PrintToString(balance), " ", static_cast<int>(mode), " ", schedule));
        Running straight = Make(balance, true, mode, schedule);
        Running one = Make({5}, true, mode, "gpipe");
        for (int step = 0; step < 2; ++step) {
          ContributionRequest request = Batch();
          for (const TensorSignature& output : one.pipeline->signature().outputs)
            request.outputs.push_back(output.name);
          const auto found = straight.pipeline->TrainStep(request, {});
          const auto wanted = one.pipeline->TrainStep(request, {});
          ASSERT_TRUE(found.ok() && wanted.ok()) << found.status() << wanted.status();
          EXPECT_EQ(found->loss, wanted->loss);
          EXPECT_EQ(found->gradient_norm, wanted->gradient_norm);
          ExpectSame(found->outputs, wanted->outputs);
        }
        ExpectSame(straight.pipeline->ExportState(true).value(), one.pipeline->ExportState(true).value());
      }
    }
  }
}

TEST_F(StraightValues, ALossMayBeOfAnOutputFromTheMiddle) {
  for (const std::vector<int>& balance : kCuts) {
    Running straight = Make(balance, true);
    Running one = Make({5}, true);
    for (int i = 1; i <= 3; ++i) {
      SCOPED_TRACE(absl::StrCat(::testing::PrintToString(balance), " cache ", i));
      ContributionRequest request = Batch();
      request.loss = LossSpec{.name = "mean_squared_error", .options = {}};
      request.loss->output = one.pipeline->signature().outputs[i].name;
      request.target = at::randn({kStraightRows, 6, 4});
      for (const TensorSignature& output : one.pipeline->signature().outputs) request.outputs.push_back(output.name);
      const auto found = straight.pipeline->ForwardBackward(request);
      const auto wanted = one.pipeline->ForwardBackward(request);
      ASSERT_TRUE(found.ok() && wanted.ok()) << found.status() << wanted.status();
      EXPECT_EQ(found->loss, wanted->loss);
      ExpectSame(found->outputs, wanted->outputs);
      ExpectSame(straight.pipeline->ExportGradients().value(), one.pipeline->ExportGradients().value());
      request.outputs.clear();
      std::optional<double> losses[2];
      for (const auto& [pipeline, loss] :
           {std::pair(straight.pipeline.get(), &losses[0]), {one.pipeline.get(), &losses[1]}}) {
        absl::Notification done;
        pipeline->EvaluateAsync({.batch = request, .metrics = {}},
                                [&, loss = loss](absl::StatusOr<RunOutcome> outcome) {
                                  EXPECT_TRUE(outcome.ok()) << outcome.status();
                                  if (outcome.ok()) *loss = outcome->loss;
                                  done.Notify();
                                });
        pool_.Wait(done);
      }
      EXPECT_EQ(losses[0], losses[1]);
      EXPECT_TRUE(losses[0].has_value());
    }
  }
}

TEST_F(StraightValues, GradientsOfInputsAndOfOutputsGoThere) {
  for (const std::vector<int>& balance : kCuts) {
    for (const CheckpointMode mode : {CheckpointMode::kAlways, CheckpointMode::kNever}) {
      SCOPED_TRACE(absl::StrCat(::testing::PrintToString(balance), " ", static_cast<int>(mode)));
      Running straight = Make(balance, true, mode);
      Running one = Make({5}, true, mode);
      Running through = Make(balance, false, mode);
      NamedTensors gradients;
      std::vector<RunOutcome> outcomes;
      for (Running* each : {&straight, &one, &through}) {
        ForwardRequest request;
        request.inputs = NamedTensors(example_.inputs);
        request.input_gradients = true;
        auto forward = each->pipeline->Forward(request);
        ASSERT_TRUE(forward.ok()) << forward.status();
        for (const NamedValue& output : forward->outputs) {
          if (gradients.size() < forward->outputs.size()) {
            gradients.push_back({output.name, at::randn(output.value.tensor()->sizes())});
          }
        }
        for (const bool retain : {true, false}) {
          const auto outcome = each->pipeline->Backward(forward->graph, gradients, retain);
          ASSERT_TRUE(outcome.ok()) << outcome.status();
          outcomes.push_back(*outcome);
        }
      }
      for (const size_t other : {2, 4}) {
        ExpectSame(outcomes[0].input_gradients, outcomes[other].input_gradients);
        ExpectSame(outcomes[1].input_gradients, outcomes[other + 1].input_gradients);
      }
      for (const NamedValue& gradient : outcomes[0].input_gradients)
        EXPECT_TRUE(gradient.value.is_tensor()) << gradient.name;
      ExpectSame(straight.pipeline->ExportGradients().value(), one.pipeline->ExportGradients().value());
      EXPECT_LT(straight.Sent(), through.Sent());
    }
  }
}

// What training uses earlier than evaluation does; and a later input, where nothing but a number of rows would cross.
TEST_F(StraightValues, EveryCutOfOtherProgramsIsTheSame) {
  for (const ProgramExample& example : ProgramExamples(kStraightRows)) {
    if (example.program != "two_ways_both.pt2" && example.program != "towers_both.pt2") continue;
    example_ = example;
    for (const ProgramCuts cuts : {ProgramCuts::kModules, ProgramCuts::kNodes}) {
      const int layers = LoadedProgram(example.program, cuts)->size();
      for (int cut = 1; cut < layers; ++cut) {
        SCOPED_TRACE(absl::StrCat(example.program, " cut at ", cut, " of ", layers));
        Running two = Make({cut, layers - cut}, true, CheckpointMode::kAlways, "1f1b", {}, cuts);
        Running one = Make({layers}, true, CheckpointMode::kAlways, "gpipe", {}, cuts);
        ASSERT_TRUE(two.pipeline != nullptr && one.pipeline != nullptr);
        const auto found = Infer(*two.pipeline, example_.inputs);
        const auto wanted = Infer(*one.pipeline, example_.inputs);
        ASSERT_EQ(found.status(), wanted.status());
        if (found.ok()) ExpectSame(*found, *wanted);
        const auto step = two.pipeline->TrainStep(Batch(), {});
        const auto plain = one.pipeline->TrainStep(Batch(), {});
        ASSERT_TRUE(step.ok() && plain.ok()) << step.status() << plain.status();
        EXPECT_EQ(step->loss, plain->loss);
        EXPECT_EQ(step->gradient_norm, plain->gradient_norm);
      }
    }
  }
}

TEST_F(StraightValues, AStageThatFailsEndsTheCallAndTheNextOneRuns) {
  bool fails = true;
  Running straight = Make({2, 1, 2}, true, CheckpointMode::kAlways, "1f1b", [&](const Action& action) {
    if (fails && action.stage == 1 && action.micro_batch == 1) throw std::bad_alloc();
  });
  Running one = Make({5}, true, CheckpointMode::kAlways);
  const auto failed = straight.pipeline->TrainStep(Batch(), {});
  EXPECT_EQ(ReasonOf(failed.status()), "HOST_MEMORY") << failed.status();
  EXPECT_EQ(ValuesOf(failed.status())["stage"], "1");
  fails = false;
  const auto found = straight.pipeline->TrainStep(Batch(), {});
  const auto wanted = one.pipeline->TrainStep(Batch(), {});
  ASSERT_TRUE(found.ok() && wanted.ok()) << found.status() << wanted.status();
  EXPECT_EQ(found->loss, wanted->loss);
  EXPECT_EQ(found->gradient_norm, wanted->gradient_norm);
}

}  // namespace
}  // namespace penstock::testing
