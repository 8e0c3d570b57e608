#include "engine/exec/bubble_filling.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/observe/metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/small_specs.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;
using ::testing::HasSubstr;
using testing::SmallBatch;

constexpr int64_t kWidth = testing::kSmallWidth;

PipelineSpec Mlp(int stages, int micro_batches, const std::string& kind = "1f1b") {
  PipelineSpec spec = testing::SmallMlp(stages, micro_batches, kind);
  spec.bubble_filling.inference_share = 0;  // nobody is due, however slow the machine
  return spec;
}

// One inference on its way. Must outlive it.
struct Question {
  absl::Notification done;
  absl::StatusOr<ForwardOutcome> answer = absl::UnknownError("open");

  void Ask(Pipeline& pipeline, ForwardRequest request) {
    pipeline.InferAsync(std::move(request), [this](absl::StatusOr<ForwardOutcome> outcome) {
      answer = std::move(outcome);
      done.Notify();
    });
  }
  const at::Tensor& output() const { return *answer->outputs[0].value.tensor(); }
};

// Pipelines on up to four devices whose actions all run on this thread, in rounds.
class SerialFilling : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec, Clock* clock = nullptr) {
    Pipeline::Options options;
    options.devices = &pool_;
    options.clock = clock;
    options.profile = {.rows = 2, .repeats = 1};
    options.before_action = [this](const Action& action) {
      log_.push_back(ToString(action));
      if (on_action_) on_action_(action);
      const auto found = at_.find(log_.back());
      if (found == at_.end()) return;
      const auto hook = found->second;
      at_.erase(found);
      hook();
    };
    options.metrics = [this, clock](const Plan& plan) {
      std::vector<LaneDescription> lanes(plan.stages.size());
      for (size_t s = 0; s < lanes.size(); ++s) lanes[s].lane = static_cast<int>(s);
      metrics_ = std::make_shared<PipelineMetrics>(clock == nullptr ? RealClock() : clock, "test", lanes,
                                                   ScheduleDescription());
      return metrics_;
    };
    auto pipeline = Pipeline::Create(spec, options);
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }
  ForwardRequest Request(int micro_batches = 1, int32_t priority = 0) const {
    ForwardRequest request;
    request.inputs = NamedTensors{{"input", question_}};
    request.micro_batches = micro_batches;
    request.priority = priority;
    return request;
  }
  // The answer with the weights as they are.
  at::Tensor Output(Pipeline& pipeline, int micro_batches = 1) {
    Question question;
    question.Ask(pipeline, Request(micro_batches));
    pool_.Wait(question.done);
    EXPECT_TRUE(question.answer.ok()) << question.answer.status();
    return question.output();
  }
  int64_t Inferred(int lane) const { return metrics_->lane(lane).phases[Phase::kInfer].Snapshot().count(); }
  int64_t Filled(int lane) const { return metrics_->lane(lane).state.Snapshot()[StageState::kFilled]; }

  const at::Tensor question_ = at::randn({4, kWidth});
  DevicePool pool_{{{"cpu:0", {}, 0}, {"cpu:1", {}, 0}, {"cpu:2", {}, 0}, {"cpu:3", {}, 0}}, DevicePool::Mode::kSerial};
  std::vector<std::string> log_;  // of training
  std::function<void(const Action&)> on_action_;
  std::map<std::string, std::function<void()>> at_;  // what to do at the first action of this text
  std::shared_ptr<PipelineMetrics> metrics_;
};

TEST_F(SerialFilling, TrainingGoesInItsOrderAsIfThereWereNoInference) {
  auto pipeline = Make(Mlp(4, 8));
  ContributionRequest batch = SmallBatch(8);
  ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
  const std::vector<std::string> order = std::exchange(log_, {});
  std::vector<Question> questions(6);
  for (Question& question : questions) question.Ask(*pipeline, Request(4));
  ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
  EXPECT_EQ(log_, order);
  for (int lane = 0; lane < 4; ++lane) EXPECT_GT(Filled(lane), 0) << lane;
  for (Question& question : questions) {
    pool_.Wait(question.done);
    EXPECT_TRUE(question.answer.ok());
  }
}

TEST_F(SerialFilling, WhatHasEndedOnAllStagesIsAnsweredWithItsStep) {
  auto pipeline = Make(Mlp(4, 8));
  const at::Tensor before = Output(*pipeline);
  Question question;
  question.Ask(*pipeline, Request());
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  ASSERT_TRUE(question.done.HasBeenNotified());
  ASSERT_TRUE(question.answer.ok());
  EXPECT_EQ(question.answer->step, 0);
  EXPECT_TRUE(at::equal(question.output(), before));
}

TEST_F(SerialFilling, WhatCannotEndBeforeTheWeightsChangeRunsAgainOnTheNewOnes) {
  auto pipeline = Make(Mlp(2, 2));
  const at::Tensor before = Output(*pipeline, 4);
  const int64_t once = Inferred(0);
  Question question;
  at_["1OPT"] = [&] { question.Ask(*pipeline, Request(4)); };  // lane 0 still has its last backward to do
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  EXPECT_FALSE(question.done.HasBeenNotified());
  pool_.Wait(question.done);
  ASSERT_TRUE(question.answer.ok()) << question.answer.status();
  EXPECT_EQ(question.answer->step, 1);
  EXPECT_FALSE(at::equal(question.output(), before));
  EXPECT_GE(Inferred(0), once + 4);
  EXPECT_TRUE(at::equal(question.output(), Output(*pipeline, 4)));
}

TEST_F(SerialFilling, ARunThatHasBegunGivesWayAtItsNextMicroBatch) {
  auto pipeline = Make(Mlp(4, 8));
  Question question;
  int64_t begun = 0;
  at_["3B6"] = [&] { question.Ask(*pipeline, Request(4)); };
  at_["0OPT"] = [&] { begun = Inferred(0); };
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_GT(begun, 0);
  pool_.Wait(question.done);
  ASSERT_TRUE(question.answer.ok()) << question.answer.status();
  EXPECT_EQ(question.answer->step, 1);
  EXPECT_EQ(Inferred(0), begun + 4);  // as a whole, on the new weights
  EXPECT_TRUE(at::equal(question.output(), Output(*pipeline, 4)));
}

TEST_F(SerialFilling, ACallThatIsCancelledWhileItGivesWayIsNotRunAgain) {
  auto pipeline = Make(Mlp(2, 2));
  Question question;
  ForwardRequest request = Request(4);
  request.cancel = std::make_shared<CancelToken>();
  const auto cancel = request.cancel;
  at_["0B1"] = [&] {
    question.Ask(*pipeline, request);
    at_["0OPT"] = [&] { cancel->Cancel(); };
  };
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  pool_.Wait(question.done);
  EXPECT_EQ(ReasonOf(question.answer.status()), "WORK_CANCELLED");
  EXPECT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
}

TEST_F(SerialFilling, WeightsThatAreImportedMakeInferenceGiveWayToo) {
  auto pipeline = Make(Mlp(2, 2));
  const NamedTensors start = pipeline->ExportState(true).value();
  const at::Tensor before = Output(*pipeline);
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  Question question;
  question.Ask(*pipeline, Request());  // serial: nothing of it has run
  ASSERT_TRUE(pipeline->ImportState(start, 0).ok());
  pool_.Wait(question.done);
  ASSERT_TRUE(question.answer.ok());
  EXPECT_EQ(question.answer->step, 0);
  EXPECT_TRUE(at::equal(question.output(), before));
}

TEST_F(SerialFilling, SwitchedOffNothingOfItRunsInsideAStep) {
  PipelineSpec spec = Mlp(2, 4);
  spec.bubble_filling.enabled = false;
  auto pipeline = Make(spec);
  Question question;
  at_["0F0"] = [&] { question.Ask(*pipeline, Request()); };
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_EQ(Filled(0) + Filled(1), 0);
  pool_.Wait(question.done);
  ASSERT_TRUE(question.answer.ok());
  EXPECT_EQ(question.answer->step, 1);
}

TEST_F(SerialFilling, SwitchedOffItGoesBeforeTheFirstActionsOfTheNextStep) {
  PipelineSpec spec = Mlp(2, 4);
  spec.bubble_filling = {.enabled = false, .inference_share = 0.5};
  auto pipeline = Make(spec);
  Question question;
  at_["0F0"] = [&] { question.Ask(*pipeline, Request()); };
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_FALSE(question.done.HasBeenNotified());
  bool before = false;
  at_["1F0"] = [&] { before = question.done.HasBeenNotified(); };
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_TRUE(before);
  EXPECT_EQ(question.answer->step, 1);
}

TEST_F(SerialFilling, WhoHasWaitedLongEnoughGoesBeforeTrainingThatLeavesNoGap) {
  PipelineSpec spec = Mlp(1, 4);
  spec.bubble_filling = {.enabled = true, .inference_share = 0.5, .max_wait_seconds = 1e-9};
  auto pipeline = Make(spec);
  const at::Tensor before = Output(*pipeline, 2);
  Question question;
  at_["0F1"] = [&] { question.Ask(*pipeline, Request(2)); };
  at_["0F3"] = [&] { EXPECT_TRUE(question.done.HasBeenNotified()); };
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  ASSERT_TRUE(question.done.HasBeenNotified());
  EXPECT_EQ(question.answer->step, 0);
  EXPECT_TRUE(at::equal(question.output(), before));

  spec.bubble_filling.inference_share = 0;
  pipeline = Make(spec);
  Question patient;
  at_["0F1"] = [&] { patient.Ask(*pipeline, Request(2)); };
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_FALSE(patient.done.HasBeenNotified());
  pool_.Wait(patient.done);
  EXPECT_EQ(patient.answer->step, 1);
}

TEST_F(SerialFilling, TheStepWaitsForARunThatIsDue) {
  PipelineSpec spec = Mlp(2, 2);
  spec.bubble_filling = {.enabled = true, .inference_share = 0.5, .max_wait_seconds = 1e-9};
  auto pipeline = Make(spec);
  const at::Tensor before = Output(*pipeline, 4);
  Question question;
  at_["1OPT"] = [&] { question.Ask(*pipeline, Request(4)); };
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  ASSERT_TRUE(question.done.HasBeenNotified());
  EXPECT_EQ(question.answer->step, 0);
  EXPECT_TRUE(at::equal(question.output(), before));
}

TEST_F(SerialFilling, HigherPrioritiesAreServedFirst) {
  auto pipeline = Make(Mlp(2, 4));
  std::vector<int> order;
  std::vector<absl::Notification> done(4);
  const std::vector<int32_t> priorities = {0, 5, -1, 5};
  for (int i = 0; i < 4; ++i) {
    pipeline->InferAsync(Request(1, priorities[i]), [&, i](const absl::StatusOr<ForwardOutcome>& outcome) {
      EXPECT_TRUE(outcome.ok());
      order.push_back(i);
      done[i].Notify();
    });
  }
  for (absl::Notification& one : done) pool_.Wait(one);
  EXPECT_THAT(order, ElementsAre(1, 3, 0, 2));
}

// Layers that take as long as a test says, by a clock that only they move. Everything runs on one thread, so that a
// forecast, which counts on lanes at the same time, says every gap rather too short, as it should.
class TimedFilling : public SerialFilling {
 protected:
  static constexpr int64_t kForward = 1'000'000;

  std::unique_ptr<Pipeline> MakeTimed(double share = 0, std::vector<int> balance = {1, 1}) {
    const auto forward = [this](const Batch& inputs, const LayerContext& context, const Tensors& parameters) {
      if (breaks_ && !context.training) throw std::runtime_error("a layer broke");
      clock_.AdvanceNanos(context.training ? forward_nanos_ : inference_nanos_);
      return testing::Multiply(inputs, context, parameters);
    };
    on_action_ = [this](const Action& action) {
      if (action.kind == ActionKind::kBackward) clock_.AdvanceNanos(2 * forward_nanos_);
    };
    const testing::FunctionLayer layer = {.forward = forward, .parameters = {{kWidth}}};
    PipelineSpec spec = testing::Pipe({testing::Function(layer), testing::Function(layer)}, std::move(balance), 4,
                                      CheckpointMode::kNever);
    spec.optimizer.options = {{"learning_rate", 0.01}};
    spec.schedule.kind = "1f1b";
    spec.bubble_filling.inference_share = share;  // 0: nobody is due
    return Make(spec, &clock_);
  }

  FakeClock clock_;
  int64_t forward_nanos_ = kForward;
  int64_t inference_nanos_ = kForward / 2;
  bool breaks_ = false;
};

TEST_F(TimedFilling, TakesWhatTheForecastGapHolds) {
  auto pipeline = MakeTimed();
  Output(*pipeline);                                         // shows what inference takes
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());  // and this what training takes
  std::vector<Question> questions(4);
  for (Question& question : questions) question.Ask(*pipeline, Request());
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_GE(Filled(0), inference_nanos_);
  EXPECT_EQ(Filled(0) % inference_nanos_, 0);
  for (Question& question : questions) pool_.Wait(question.done);
}

TEST_F(TimedFilling, WithoutTrainingPrioritiesHoldHoweverLongOthersHaveWaited) {
  auto pipeline = MakeTimed(0.5);
  Output(*pipeline);
  std::vector<int> order;
  std::vector<absl::Notification> done(2);
  for (const int i : {0, 1}) {
    pipeline->InferAsync(Request(1, i), [&, i](const absl::StatusOr<ForwardOutcome>& outcome) {
      EXPECT_TRUE(outcome.ok());
      order.push_back(i);
      done[i].Notify();
    });
    clock_.AdvanceNanos(1000 * kForward);
  }
  for (absl::Notification& one : done) pool_.Wait(one);
  EXPECT_THAT(order, ElementsAre(1, 0));
}

TEST_F(TimedFilling, DoesNotTakeWhatNoGapHolds) {
  auto pipeline = MakeTimed();
  inference_nanos_ = 20 * kForward;
  Output(*pipeline);
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  const int64_t before = clock_.NowNanos();
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  const int64_t alone = clock_.NowNanos() - before;
  Question question;
  question.Ask(*pipeline, Request());
  const int64_t begin = clock_.NowNanos();
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_EQ(clock_.NowNanos() - begin, alone);
  EXPECT_EQ(Filled(0) + Filled(1), 0);
  EXPECT_FALSE(question.done.HasBeenNotified());
  pool_.Wait(question.done);
  EXPECT_EQ(question.answer->step, 3);
}

TEST_F(TimedFilling, DoesNotTakeInsideAStepWhatWasNeverSeen) {
  auto pipeline = MakeTimed();
  Question question;
  question.Ask(*pipeline, Request());
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  EXPECT_EQ(Filled(0) + Filled(1), 0);
  pool_.Wait(question.done);
  EXPECT_EQ(question.answer->step, 1);
}

TEST_F(TimedFilling, AnErrorOfInferenceIsItsOwnAndHoldsNobodyUp) {
  auto pipeline = MakeTimed();
  Output(*pipeline);
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  breaks_ = true;
  std::vector<Question> questions(3);
  for (Question& question : questions) question.Ask(*pipeline, Request());
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  for (Question& question : questions) {
    pool_.Wait(question.done);
    EXPECT_THAT(std::string(question.answer.status().message()), HasSubstr("stage 0, micro-batch 0, action 0F0"));
  }
  breaks_ = false;
  Output(*pipeline);
  EXPECT_EQ(pipeline->step(), 2);
}

// Training with inference thrown in at any time, on threads; then every answer is compared with what the weights of the
// step that it names give.
class ThreadedFilling : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int kSteps = 25;

  static PipelineSpec Spec(const std::string& kind, int lanes) {
    PipelineSpec spec;
    const bool chunked = kind == "interleaved-1f1b" || kind == "zbv";
    spec.model = {"mlp", {{"layers", int64_t{8}}, {"width", kWidth}}, {}};
    spec.cut.stages = chunked ? 2 * lanes : lanes;
    spec.schedule = {kind, 2 * lanes, CheckpointMode::kExceptLast};
    if (chunked) spec.schedule.chunks = 2;
    if (kind == "zbv" || kind == "zb-h1") spec.schedule.checkpoint = CheckpointMode::kNever;
    spec.optimizer.name = "sgd";
    spec.optimizer.options = {{"learning_rate", 0.1}};
    spec.loss.name = "mean_squared_error";
    spec.seed = 7;
    return spec;
  }
  static std::vector<Device> Devices(int count) {
    std::vector<Device> devices;
    for (int i = 0; i < count; ++i)
      devices.push_back({.name = "cpu:" + std::to_string(i), .cores = {i % 2}, .index = i});
    return devices;
  }
  static std::unique_ptr<Pipeline> Make(DevicePool& pool, const PipelineSpec& spec) {
    Pipeline::Options options;
    options.devices = &pool;
    options.profile = {.rows = 2, .repeats = 1};
    auto pipeline = Pipeline::Create(spec, options);
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }

  // The outputs of every step's weights, and then the same training again from the start beside `clients` threads.
  static void Check(Pipeline& pipeline, int clients) {
    std::vector<ContributionRequest> batches;
    for (int i = 0; i < kSteps; ++i) batches.push_back(SmallBatch(8));
    const at::Tensor input = at::randn({4, kWidth});
    const auto request = [&](int number) {
      ForwardRequest one;
      one.inputs = NamedTensors{{"input", input}};
      one.micro_batches = 2;
      one.priority = number % 3;
      return one;
    };
    const NamedTensors start = pipeline.ExportState(true).value();
    std::vector<at::Tensor> expected;
    for (int step = 0; step <= kSteps; ++step) {
      Question question;
      question.Ask(pipeline, request(0));
      question.done.WaitForNotification();
      ASSERT_TRUE(question.answer.ok()) << question.answer.status();
      expected.push_back(question.output());
      if (step < kSteps) {
        ASSERT_TRUE(pipeline.TrainStep(batches[step], {}).ok());
      }
    }
    const NamedTensors trained = pipeline.ExportState(true).value();
    ASSERT_TRUE(pipeline.ImportState(start, 0).ok());
    std::atomic<bool> stop = false;
    std::vector<int> wrong(clients);
    std::vector<int> answered(clients);
    absl::BlockingCounter asking(clients);  // the steps begin when everyone has been answered once
    {
      std::vector<std::unique_ptr<Thread>> threads;
      for (int c = 0; c < clients; ++c) {
        threads.push_back(std::make_unique<Thread>("client", [&, c] {
          while (!stop) {
            Question one;
            Question other;
            one.Ask(pipeline, request(c));
            other.Ask(pipeline, request(c + 1));
            for (Question* question : {&one, &other}) {
              question->done.WaitForNotification();
              ++answered[c];
              const auto& answer = question->answer;
              if (!answer.ok() || !at::equal(question->output(), expected.at(answer->step))) ++wrong[c];
            }
            if (answered[c] == 2) asking.DecrementCount();
          }
        }));
      }
      asking.Wait();
      for (int step = 0; step < kSteps; ++step) EXPECT_TRUE(pipeline.TrainStep(batches[step], {}).ok());
      stop = true;
    }
    for (int c = 0; c < clients; ++c) {
      EXPECT_EQ(wrong[c], 0);
      EXPECT_GT(answered[c], 0);
    }
    EXPECT_TRUE(testing::SameTensors(pipeline.ExportState(true).value(), trained));
  }
};

TEST_P(ThreadedFilling, EveryAnswerIsThatOfTheWeightsOfOneStep) {
  DevicePool pool(Devices(2), DevicePool::Mode::kThreads);
  auto pipeline = Make(pool, Spec(GetParam(), 2));
  Check(*pipeline, 3);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ThreadedFilling, ::testing::Values("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zbv"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

class ManyLanesFilling : public ThreadedFilling {};

TEST_F(ManyLanesFilling, SharesCores) {
  DevicePool pool(Devices(4), DevicePool::Mode::kThreads);
  auto pipeline = Make(pool, Spec("1f1b", 4));
  Check(*pipeline, 4);
}

TEST_F(ManyLanesFilling, TwoPipelinesOnTheSameDevicesKeepApart) {
  DevicePool pool(Devices(2), DevicePool::Mode::kThreads);
  auto one = Make(pool, Spec("1f1b", 2));
  auto two = Make(pool, Spec("gpipe", 2));
  Thread other("other", [&] { Check(*two, 2); });
  Check(*one, 2);
}

TEST_F(ManyLanesFilling, APipelineGoesAwayOnlyWhenItsInferenceIsAnswered) {
  DevicePool pool(Devices(2), DevicePool::Mode::kThreads);
  std::vector<Question> questions(20);
  {
    auto pipeline = Make(pool, Spec("1f1b", 2));
    for (size_t i = 0; i < questions.size(); ++i) {
      ForwardRequest request;
      request.inputs = NamedTensors{{"input", at::randn({4, kWidth})}};
      questions[i].Ask(*pipeline, std::move(request));
      if (i % 5 == 0) {
        ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
      }
    }
  }
  for (Question& question : questions) {
    ASSERT_TRUE(question.done.HasBeenNotified());
    EXPECT_TRUE(question.answer.ok());
  }
}

}  // namespace
}  // namespace penstock
