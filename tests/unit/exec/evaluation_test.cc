// Evaluation: the loss and metrics of a loop without dropout and graph, beside training.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock::testing {
namespace {

constexpr int64_t kWidth = 6;

// Dropout, batch norm and labels that may be ignored: all in which training and evaluation differ.
PipelineSpec Classifier(std::vector<int> balance, const std::string& kind = "gpipe", int chunks = 1) {
  PipelineSpec spec = Pipe(
      {Built("linear", {{"in", kWidth}, {"out", kWidth}}, "first"), Built("batch_norm", {{"features", kWidth}}, "norm"),
       Built("dropout", {{"p", 0.5}}, "drop"), Built("linear", {{"in", kWidth}, {"out", kWidth}}, "last")},
      std::move(balance), 3);
  spec.schedule.kind = kind;
  spec.schedule.chunks = chunks;
  spec.optimizer.options = {{"learning_rate", 0.1}};
  spec.loss.name = "cross_entropy";
  return spec;
}

ContributionRequest LabelledBatch(int number, int64_t rows) {
  ContributionRequest request =
      Contribution(Range({rows, kWidth}).add(number).mul(40).sin(), at::arange(rows).add(number).remainder(kWidth));
  request.target[rows / 2] = -100;
  return request;
}

class Evaluation : public ::testing::Test {
 protected:
  absl::StatusOr<RunOutcome> Evaluate(Pipeline& pipeline, ContributionRequest batch,
                                      std::vector<std::string> metrics = {}) {
    absl::Notification done;
    absl::StatusOr<RunOutcome> answer;
    pipeline.EvaluateAsync({.batch = std::move(batch), .metrics = std::move(metrics), .priority = 0},
                           [&](absl::StatusOr<RunOutcome> outcome) {
                             answer = std::move(outcome);
                             done.Notify();
                           });
    world_.pool().Wait(done);
    return answer;
  }

  PipeWorld world_;
};

TEST_F(Evaluation, HasTheBitsOfAPlainLoopForEveryCutAndSchedule) {
  const std::vector<std::pair<std::vector<int>, std::string>> cuts = {
      {{4}, "gpipe"}, {{1, 3}, "gpipe"}, {{2, 2}, "1f1b"}, {{3, 1}, "zb-h1"}, {{1, 1, 1, 1}, "interleaved-1f1b"}};
  for (const auto& [balance, kind] : cuts) {
    SCOPED_TRACE(kind);
    PipelineSpec spec = Classifier(balance, kind, kind == "interleaved-1f1b" ? 2 : 1);
    if (balance.size() == 4) spec.devices = {"cpu:0", "cpu:1"};
    const auto pipeline = world_.Make(spec);
    PlainReference plain = PlainOf(spec);
    for (int step = 0; step < 2; ++step) {
      const ContributionRequest batch = LabelledBatch(step, 8);
      ASSERT_TRUE(pipeline->TrainStep(batch, {}).ok());
      plain.TrainStep({batch.inputs[0].value}, batch.target, 3);
    }
    ContributionRequest held_out = LabelledBatch(9, 7);
    for (int m : {1, 3, 7}) {
      held_out.micro_batches = m;
      const absl::StatusOr<RunOutcome> found = Evaluate(*pipeline, held_out, {"accuracy", "top_2_accuracy"});
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(*found->loss, plain.Evaluate({held_out.inputs[0].value}, held_out.target, m)) << m;
      EXPECT_EQ(found->counted, 6) << "one label is ignored";
      EXPECT_EQ(found->rows, 7);
      EXPECT_EQ(found->step, 2);
      const at::Tensor logits = plain.Infer({held_out.inputs[0].value}, m)[0];
      const auto right = logits.argmax(-1).eq(held_out.target).sum().item<double>();
      EXPECT_DOUBLE_EQ(found->metrics.at("accuracy"), right / 6);
      EXPECT_GE(found->metrics.at("top_2_accuracy"), found->metrics.at("accuracy"));
      EXPECT_TRUE(found->outputs.empty());
    }
    EXPECT_TRUE(SameState(*pipeline, plain)) << "statistics have not moved";
  }
}

TEST_F(Evaluation, UnderWeightsItIsTheValueOfTheWholeBatchHoweverItIsCut) {
  PipelineSpec spec = Classifier({2, 2});
  spec.loss.class_weights = {0.5, 1, 2, 3, 0.25, 1};
  const auto pipeline = world_.Make(spec);
  ContributionRequest batch = LabelledBatch(9, 7);
  batch.weights = at::arange(7, at::kFloat).mul(0.75).add(0.1);
  const at::Tensor logits = *world_.Infer(*pipeline, batch.inputs)->outputs[0].value.tensor();
  const at::Tensor counts = batch.target.ne(-100);
  const at::Tensor labels = batch.target.clamp_min(0);
  const at::Tensor weights =
      at::tensor(spec.loss.class_weights, at::kDouble).index_select(0, labels) * batch.weights * counts;
  const at::Tensor losses = -at::log_softmax(logits.to(at::kDouble), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1);
  const auto right = logits.argmax(-1).eq(batch.target).sum().item<double>();
  for (int m : {1, 3, 7}) {
    batch.micro_batches = m;  // of 3: three rows, two and two
    const RunOutcome found = Evaluate(*pipeline, batch, {"accuracy"}).value();
    EXPECT_NEAR(*found.counted, weights.sum().item<double>(), 1e-5) << m;
    EXPECT_NEAR(*found.loss, ((losses * weights).sum() / weights.sum()).item<double>(), 1e-6) << m;
    EXPECT_EQ(found.metric_elements, 6) << "metrics take no weights";
    EXPECT_DOUBLE_EQ(found.metrics.at("accuracy"), right / 6) << m;
  }
}

TEST_F(Evaluation, LeavesAnOpenAccumulationAsItIs) {
  const PipelineSpec spec = Classifier({2, 2});
  const auto pipeline = world_.Make(spec);
  PlainReference plain = PlainOf(spec);
  for (int i = 0; i < 2; ++i) {
    const ContributionRequest batch = LabelledBatch(i, 6);
    ASSERT_TRUE(pipeline->ForwardBackward(batch).ok());
    plain.Contribute({batch.inputs[0].value}, batch.target, 3);
    ASSERT_TRUE(Evaluate(*pipeline, LabelledBatch(5, 6)).ok());
  }
  ASSERT_TRUE(pipeline->OptimizerStep({}).ok());
  plain.Step();
  EXPECT_TRUE(SameState(*pipeline, plain));
}

TEST_F(Evaluation, ALossOfItsOwnStandsInForThePipelines) {
  PipelineSpec spec = Classifier({4});
  spec.loss = {};
  const auto pipeline = world_.Make(spec);
  EXPECT_EQ(ReasonOf(Evaluate(*pipeline, LabelledBatch(0, 4)).status()), "LOSS_UNKNOWN");
  ContributionRequest batch = LabelledBatch(0, 4);
  batch.target = at::zeros({4, kWidth});
  batch.loss = LossSpec{"mean_squared_error", {}};
  const RunOutcome found = Evaluate(*pipeline, batch, {"mean_absolute_error"}).value();
  const at::Tensor output = *world_.Infer(*pipeline, batch.inputs)->outputs[0].value.tensor();
  EXPECT_NEAR(*found.loss, output.square().mean().item<double>(), 1e-7);
  EXPECT_NEAR(found.metrics.at("mean_absolute_error"), output.abs().mean().item<double>(), 1e-7);
}

TEST_F(Evaluation, NothingThatCountsGivesZero) {
  const auto pipeline = world_.Make(Classifier({4}));
  ContributionRequest batch = LabelledBatch(0, 4);
  batch.target.fill_(-100);
  const RunOutcome found = Evaluate(*pipeline, batch, {"accuracy"}).value();
  EXPECT_EQ(found.loss, 0);
  EXPECT_EQ(found.counted, 0);
  EXPECT_EQ(found.metrics.at("accuracy"), 0);
}

TEST_F(Evaluation, RefusesWhatTheLossDoesNotHave) {
  const auto pipeline = world_.Make(Classifier({2, 2}));
  EXPECT_EQ(ReasonOf(Evaluate(*pipeline, LabelledBatch(0, 4), {"mean_absolute_error"}).status()), "FIELD_INVALID");
  EXPECT_EQ(ReasonOf(Evaluate(*pipeline, LabelledBatch(0, 4), {"top_7_accuracy"}).status()), "FIELD_INVALID");
  ContributionRequest wrong = LabelledBatch(0, 4);
  wrong.target[1] = kWidth;
  EXPECT_EQ(ReasonOf(Evaluate(*pipeline, wrong).status()), "TENSOR_SIGNATURE");
  wrong.target = at::Tensor();
  EXPECT_EQ(ReasonOf(Evaluate(*pipeline, wrong).status()), "FIELD_INVALID");
  EXPECT_TRUE(Evaluate(*pipeline, LabelledBatch(0, 4)).ok()) << "the pipeline goes on";
}

TEST_F(Evaluation, BesideTrainingItSeesTheWeightsOfOneStepAndTellsWhich) {
  constexpr int kSteps = 25;
  PipeWorld threads(DevicePool::Mode::kThreads);
  const auto pipeline = threads.Make(Classifier({2, 2}, "1f1b"));
  const ContributionRequest held_out = LabelledBatch(9, 6);
  const NamedTensors start = pipeline->ExportState(true).value();
  const auto evaluate = [&](absl::Notification& done, absl::StatusOr<RunOutcome>& answer) {
    pipeline->EvaluateAsync({.batch = held_out, .metrics = {}, .priority = 0}, [&](absl::StatusOr<RunOutcome> outcome) {
      answer = std::move(outcome);
      done.Notify();
    });
  };
  std::vector<double> expected;
  for (int step = 0; step <= kSteps; ++step) {
    absl::Notification done;
    absl::StatusOr<RunOutcome> answer;
    evaluate(done, answer);
    done.WaitForNotification();
    expected.push_back(*answer.value().loss);
    if (step < kSteps) {
      ASSERT_TRUE(pipeline->TrainStep(LabelledBatch(step, 9), {}).ok());
    }
  }
  // The same training again, with evaluations thrown in at any time.
  pipeline->SetNextState(1000);
  ASSERT_TRUE(pipeline->ImportState(start, 0).ok());
  std::vector<absl::Notification> done(100);
  std::vector<absl::StatusOr<RunOutcome>> answers(100);
  {
    Thread client("client", [&] {
      for (int i = 0; i < 100; ++i) {
        evaluate(done[i], answers[i]);
        done[i].WaitForNotification();
      }
    });
    for (int step = 0; step < kSteps; ++step) {
      pipeline->SetNextState(1001 + step);
      ASSERT_TRUE(pipeline->TrainStep(LabelledBatch(step, 9), {}).ok());
    }
  }
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(*answer->loss, expected.at(answer->step)) << "step " << answer->step;
    EXPECT_EQ(answer->state, 1000 + answer->step);
  }
}

TEST_F(Evaluation, WeightsThatWereNotAppliedKeepTheNumberOfTheirState) {
  const auto pipeline = world_.Make(Classifier({2, 2}));
  EXPECT_EQ(Evaluate(*pipeline, LabelledBatch(0, 4))->state, 0);
  pipeline->SetNextState(3);
  ASSERT_TRUE(pipeline->TrainStep(LabelledBatch(0, 6), {}).ok());
  EXPECT_EQ(Evaluate(*pipeline, LabelledBatch(0, 4))->state, 3);
  pipeline->SetNextState(4);
  ContributionRequest broken = LabelledBatch(0, 6);
  broken.inputs = Input(at::full({6, kWidth}, NAN));
  ASSERT_EQ(pipeline->TrainStep(broken, {})->applied, false);
  EXPECT_EQ(Evaluate(*pipeline, LabelledBatch(0, 4))->state, 3);
}

}  // namespace
}  // namespace penstock::testing
