// Pipelines against a reference that shares no code with the engine, within a tolerance: engine_transparency_test
// compares bit for bit, but with a loop of the engine's own layers, optimizers and random draws.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "tests/transparency/written_out_models.h"

namespace penstock::testing {
namespace {

// One step: a TrainStep if it has one part, else contributions and an OptimizerStep.
struct StepPlan {
  struct Part {
    int64_t rows;
    int micro_batches;
  };
  std::vector<Part> parts;
  bool total_given = false;
  StepRequest request = {};
};

// Uneven micro-batches; contributions that share a step or count by themselves; a rate and a norm of a step's own.
std::vector<StepPlan> StepPlans() {
  return {{.parts = {{7, 3}}},
          {.parts = {{5, 2}, {3, 3}}, .total_given = true},
          {.parts = {{6, 4}, {2, 1}}},
          {.parts = {{4, 2}}, .request = {.learning_rate = 0.02, .clip_norm = 0.1}},
          {.parts = {{8, 4}}, .request = {.learning_rate = {}, .clip_norm = 0}}};
}

struct CutPlan {
  std::string schedule;
  int lanes;
  int chunks;
  CheckpointMode checkpoint;
};

std::vector<CutPlan> CutPlans() {
  return {{"gpipe", 1, 1, CheckpointMode::kNever},
          {"1f1b", 2, 1, CheckpointMode::kExceptLast},
          {"interleaved-1f1b", 2, 2, CheckpointMode::kAlways},
          {"zbv", 2, 2, CheckpointMode::kNever}};
}

double Difference(double got, double want) { return std::abs(got - want) / std::max(std::abs(want), 1e-12); }

// The largest difference of two elements, relative to the largest element.
double Difference(const at::Tensor& got, const at::Tensor& want) {
  if (got.sizes() != want.sizes() || got.scalar_type() != want.scalar_type()) return INFINITY;
  const at::Tensor wide = want.detach().to(at::kDouble);
  const auto largest = wide.abs().max().item<double>();
  return (got.to(at::kDouble) - wide).abs().max().item<double>() / std::max(largest, 1e-12);
}

class WrittenOut : public ::testing::TestWithParam<WrittenOutCase> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }

  std::unique_ptr<Pipeline> Make(const CutPlan& cut) {
    PipelineSpec spec = GetParam().spec;
    const int stages = cut.lanes * cut.chunks;
    for (int s = 0; s < stages; ++s) {
      spec.cut.balance.push_back((s + 1) * GetParam().layers / stages - s * GetParam().layers / stages);
    }
    spec.schedule = {cut.schedule, 4, cut.checkpoint, cut.chunks};
    for (int lane = 0; lane < cut.lanes; ++lane) spec.devices.push_back(absl::StrCat("cpu:", lane));
    Pipeline::Options options;
    options.devices = &pool_;
    options.profile = {.rows = 2, .repeats = 1};
    auto made = Pipeline::Create(spec, options);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }

  void ExpectNear(double difference, const std::string& what) {
    EXPECT_LE(difference, GetParam().tolerance) << what;
    largest_ = std::max(largest_, difference);
  }

  void RunStep(const StepPlan& step);
  void CompareState();
  void CompareInference();
  void CompareEvaluation();

  DevicePool pool_{{{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kSerial};
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<WrittenOutTraining> reference_;
  int batch_ = 0;
  double largest_ = 0;
};

void WrittenOut::RunStep(const StepPlan& step) {
  std::vector<WrittenOutBatch> batches;
  int64_t total = 0;
  for (const StepPlan::Part& part : step.parts) {
    batches.push_back(WrittenOutBatchOf(GetParam(), batch_++, part.rows));
    total += (batches.back().target != -100).sum().item<int64_t>();
  }
  absl::StatusOr<RunOutcome> got;
  for (size_t i = 0; i < batches.size(); ++i) {
    ContributionRequest request;
    request.inputs = NamedTensors{{GetParam().input, batches[i].input}};
    request.target = batches[i].target;
    request.micro_batches = step.parts[i].micro_batches;
    if (step.total_given) request.total_elements = total;
    got = step.parts.size() == 1 ? pipeline_->TrainStep(request, step.request) : pipeline_->ForwardBackward(request);
    ASSERT_TRUE(got.ok()) << got.status();
    const double loss = reference_->Contribute(batches[i].input, batches[i].target, step.parts[i].micro_batches,
                                               step.total_given ? std::optional<int64_t>(total) : std::nullopt);
    ExpectNear(Difference(*got->loss, loss), absl::StrCat("loss ", *got->loss, " instead of ", loss));
  }
  if (step.parts.size() > 1) got = pipeline_->OptimizerStep(step.request);
  ASSERT_TRUE(got.ok()) << got.status();
  const auto want = reference_->Step(step.request.learning_rate, step.request.clip_norm);
  ExpectNear(Difference(*got->gradient_norm, want.gradient_norm),
             absl::StrCat("gradient norm ", *got->gradient_norm, " instead of ", want.gradient_norm));
  EXPECT_LE(Difference(*got->learning_rate, want.learning_rate), 1e-12);
}

void WrittenOut::CompareState() {
  const NamedTensors state = pipeline_->ExportState(/*with_optimizer=*/true).value();
  EXPECT_EQ(state.size(), reference_->state().size());
  for (const NamedTensor& tensor : state) {
    const auto want = reference_->state().find(tensor.name);
    ASSERT_NE(want, reference_->state().end()) << tensor.name;
    ExpectNear(Difference(tensor.tensor, want->second), tensor.name);
  }
}

void WrittenOut::CompareInference() {
  const WrittenOutBatch batch = WrittenOutBatchOf(GetParam(), batch_, 5);
  absl::Notification done;
  ForwardRequest request;
  request.inputs = NamedTensors{{GetParam().input, batch.input}};
  request.micro_batches = 2;
  pipeline_->InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> got) {
    EXPECT_TRUE(got.ok()) << got.status();
    if (got.ok()) ExpectNear(Difference(*got->outputs[0].value.tensor(), reference_->Infer(batch.input)), "inference");
    done.Notify();
  });
  pool_.Wait(done);
}

void WrittenOut::CompareEvaluation() {
  const WrittenOutBatch batch = WrittenOutBatchOf(GetParam(), batch_, 7);
  const bool labels = GetParam().spec.loss.name == "cross_entropy";
  EvaluationRequest request;
  request.batch.inputs = NamedTensors{{GetParam().input, batch.input}};
  request.batch.target = batch.target;
  request.batch.micro_batches = 3;  // uneven
  if (labels) request.metrics = {"accuracy"};
  absl::Notification done;
  pipeline_->EvaluateAsync(std::move(request), [&](absl::StatusOr<RunOutcome> got) {
    EXPECT_TRUE(got.ok()) << got.status();
    if (got.ok()) {
      const auto want = reference_->Evaluate(batch.input, batch.target);
      ExpectNear(Difference(*got->loss, want.loss), absl::StrCat("evaluated ", *got->loss, " instead of ", want.loss));
      if (labels) {
        EXPECT_DOUBLE_EQ(got->metrics.at("accuracy"), want.accuracy);
      }
    }
    done.Notify();
  });
  pool_.Wait(done);
}

TEST_P(WrittenOut, StepsEqualTheReferenceWithinATolerance) {
  for (const CutPlan& cut : CutPlans()) {
    SCOPED_TRACE(cut.schedule);
    pipeline_ = Make(cut);
    ASSERT_NE(pipeline_, nullptr);
    reference_ =
        std::make_unique<WrittenOutTraining>(GetParam().spec, GetParam().model, pipeline_->ExportState(false).value());
    batch_ = 0;
    std::vector<StepPlan> steps = StepPlans();
    if (GetParam().brief) steps.resize(1);
    for (size_t s = 0; s < steps.size() && !HasFailure(); ++s) {
      SCOPED_TRACE(absl::StrCat("step ", s));
      RunStep(steps[s]);
      if (!GetParam().brief) CompareState();
    }
    CompareInference();
    CompareEvaluation();
    if (HasFailure()) return;
  }
  RecordProperty("largest_difference", absl::StrCat(largest_));
}

INSTANTIATE_TEST_SUITE_P(Models, WrittenOut, ::testing::ValuesIn(WrittenOutCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace penstock::testing
