// Searches that try what they list on the devices. Sleeps of `delay` are never early, so that steps have lower bounds.

#include "engine/exec/plan_trials.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"
#include "engine/model/layer_registry.h"
#include "engine/plan/rehearse.h"

namespace penstock {
namespace {

// Of any values, which only a run tells.
class TakesAnything : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override { return Batch(inputs[0]); }
  std::vector<TensorSignature> InputSignature() const override { return {Anything()}; }
  std::vector<TensorSignature> OutputSignature() const override { return {Anything()}; }

 private:
  static TensorSignature Anything() { return {"", DataType::kUnspecified, {}, /*any=*/true}; }
};

PipelineSpec OpenSpec() {
  PipelineSpec spec;
  for (const char* name : {"a", "b", "c", "d"}) {
    spec.model.layers.push_back(
        {"delay", name, {{"forward_ms", 1.0}, {"input_ms", 1.0}, {"weight_ms", 1.0}, {"features", int64_t{4}}}});
  }
  spec.schedule.micro_batches = 4;
  spec.optimizer.name = "sgd";
  spec.loss.name = "mean_squared_error";
  spec.limits.open = {.kind = true, .chunks = true};
  return spec;
}

PlanSearch Search(const PipelineSpec& spec, DevicePool::Mode mode, bool rehearse = true) {
  DevicePool pool({{"cpu:0", UsableCores(), 0}, {"cpu:1", UsableCores(), 0}}, mode);
  Pipeline::Options options;
  options.devices = &pool;
  options.profile = {.rows = 2, .repeats = 5};
  options.rehearse = rehearse;
  absl::StatusOr<PlanSearch> search = Pipeline::SearchPlans(spec, options);
  EXPECT_TRUE(search.ok()) << search.status();
  return search.ok() ? *std::move(search) : PlanSearch();
}

// Whether there are two that are near enough to each other to be run. What is near enough was measured, on a machine
// that may be busy.
bool WorthRehearsing(const PlanSearch& search) {
  std::vector<double> confirmed;
  for (const PlanCandidate& one : search.candidates) {
    if (one.confirmed) confirmed.push_back(one.makespan_seconds);
  }
  if (confirmed.empty()) return false;
  const double worth = kWorthRehearsing * *std::min_element(confirmed.begin(), confirmed.end());
  return std::count_if(confirmed.begin(), confirmed.end(), [worth](double one) { return one <= worth; }) > 1;
}

TEST(PlanTrials, TheBestOfASearchHaveRun) {
  const PlanSearch search = Search(OpenSpec(), DevicePool::Mode::kThreads);
  ASSERT_GE(search.candidates.size(), 2u);
  EXPECT_EQ(search.candidates[0].rehearsed_seconds.has_value(), WorthRehearsing(search));
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const double first = search.candidates[0].rehearsed_seconds.value_or(kNever);
  EXPECT_GE(first, 24e-3) << "two devices, four micro-batches through four layers of 3 ms";
  EXPECT_LE(first, search.candidates[1].rehearsed_seconds.value_or(kNever));
  ASSERT_TRUE(search.plan.has_value());
  EXPECT_EQ(search.plan->schedule.kind, search.candidates[0].schedule.kind);
  EXPECT_EQ(search.plan->schedule.chunks, search.candidates[0].schedule.chunks);
}

// A trial stands on this process's devices, whichever ranks the plan is for.
TEST(PlanTrials, PlansOfSeveralRanksAreTriedHere) {
  PipelineSpec spec = OpenSpec();
  spec.cut.balance = {2, 2};
  spec.cut.ranks = {0, 1};
  spec.limits.open = {.kind = true};
  const PlanSearch search = Search(spec, DevicePool::Mode::kThreads);
  ASSERT_GE(search.candidates.size(), 2u);
  EXPECT_TRUE(search.candidates.front().confirmed);
}

TEST(PlanTrials, WithoutALossStagesAreMeasuredButNoStepRuns) {
  PipelineSpec spec = OpenSpec();
  spec.loss.name.clear();
  const PlanSearch search = Search(spec, DevicePool::Mode::kThreads);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_TRUE(search.candidates[0].confirmed);
  EXPECT_FALSE(search.candidates[0].rehearsed_seconds.has_value());
}

TEST(PlanTrials, StepsRunOnlyWhereTheyAreAllowed) {
  const PlanSearch search = Search(OpenSpec(), DevicePool::Mode::kThreads, /*rehearse=*/false);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_TRUE(search.candidates[0].confirmed);
  EXPECT_FALSE(search.candidates[0].rehearsed_seconds.has_value());
}

TEST(PlanTrials, TheMadeUpTargetSuitsALossOfProbabilities) {
  PipelineSpec spec = OpenSpec();
  spec.loss.name = "binary_cross_entropy";
  const PlanSearch search = Search(spec, DevicePool::Mode::kThreads);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_EQ(search.candidates[0].rehearsed_seconds.has_value(), WorthRehearsing(search));
}

// What is wrong with a sample is told before anything is measured.
class PlanningSampleChecks : public ::testing::Test {
 protected:
  absl::Status Refused(const PipelineSpec& spec) {
    DevicePool pool({{"cpu:0", {}, 0}, {"cpu:1", {}, 0}}, DevicePool::Mode::kSerial);
    Pipeline::Options options;
    options.devices = &pool;
    options.profile.claim_memory = [&](int64_t) {
      measured_ = true;
      return absl::OkStatus();
    };
    return Pipeline::MakePlan(spec, options).status();
  }

  PipelineSpec Classifier() {
    PipelineSpec spec;
    spec.model.layers = {{"linear", "a", {{"in", int64_t{4}}, {"out", int64_t{3}}}},
                         {"linear", "b", {{"in", int64_t{3}}, {"out", int64_t{3}}}}};
    spec.loss.name = "cross_entropy";
    return spec;
  }

  void Give(PipelineSpec& spec, NamedValues inputs, at::Tensor target) {
    spec.sample = std::make_shared<const PlanningSample>(
        PlanningSample{.inputs = std::move(inputs), .target = std::move(target)});
  }

  bool measured_ = false;
};

TEST_F(PlanningSampleChecks, ATargetHasTheRowsOfTheInputs) {
  PipelineSpec spec = Classifier();
  Give(spec, {{"", Value(at::ones({2, 4}))}}, at::zeros({3}, at::kLong));
  const absl::Status refused = Refused(spec);
  EXPECT_EQ(ReasonOf(refused), "TENSOR_SIGNATURE") << refused;
  EXPECT_EQ(ValuesOf(refused)["field"], "sample.target[0].shape");
  EXPECT_EQ(std::string(refused.message()), "sample.target[0].shape: must have 2 rows as the inputs, got [3]");
  EXPECT_FALSE(measured_);
  Give(spec, {{"", Value(at::ones({2, 4}))}}, at::zeros({2}, at::kLong));
  EXPECT_TRUE(Refused(spec).ok()) << Refused(spec);
  EXPECT_TRUE(measured_);
}

TEST_F(PlanningSampleChecks, ATargetHasValuesThatTheLossTakes) {
  PipelineSpec spec = Classifier();
  Give(spec, {{"", Value(at::ones({2, 4}))}}, at::full({2}, 3, at::kLong));
  absl::Status refused = Refused(spec);
  EXPECT_EQ(ReasonOf(refused), "TENSOR_SIGNATURE") << refused;
  EXPECT_EQ(ValuesOf(refused)["field"], "sample.target");
  EXPECT_EQ(std::string(refused.message()), "sample.target: labels must lie in [0, 2] or equal -100, got 3");
  spec.loss.name = "binary_cross_entropy";
  Give(spec, {{"", Value(at::ones({2, 4}))}}, at::full({2, 3}, 1.5));
  refused = Refused(spec);
  EXPECT_EQ(ValuesOf(refused)["field"], "sample.target") << refused;
  EXPECT_EQ(std::string(refused.message()), "sample.target: must lie in [0, 1], got 1.5");
  EXPECT_FALSE(measured_);
}

TEST_F(PlanningSampleChecks, InputsThatNoSignatureTellsHaveEqualRows) {
  static const bool registered =
      RegisterLayerKind("test_takes_anything", [](const LayerRequest&) -> absl::StatusOr<std::unique_ptr<Layer>> {
        return std::make_unique<TakesAnything>();
      }).ok();
  ASSERT_TRUE(registered);
  PipelineSpec spec;
  spec.model.layers = {{"test_takes_anything", "a", {}}, {"test_takes_anything", "b", {}}};
  Give(spec, {{"x", Value(at::ones({2, 4}))}, {"all", Value(WholeTensor{at::ones({7})})}, {"y", Value(at::ones({3}))}},
       {});
  const absl::Status refused = Refused(spec);
  EXPECT_EQ(ReasonOf(refused), "TENSOR_SIGNATURE") << refused;
  EXPECT_EQ(ValuesOf(refused)["field"], "sample.inputs[2].shape");
  EXPECT_EQ(std::string(refused.message()), "sample.inputs[2].shape: must have 2 rows as the first, got [3]");
  EXPECT_FALSE(measured_);
  spec.loss.name = "mean_squared_error";
  Give(spec, {{"all", Value(WholeTensor{at::ones({7})})}}, at::ones({7}));
  const absl::Status unsplit = Refused(spec);
  EXPECT_EQ(
      std::string(unsplit.message()),
      "sample.inputs: at least one must be a tensor that is split into rows, got only whole tensors and plain values");
  EXPECT_FALSE(measured_);
}

TEST(PlanTrials, ASerialPoolTriesNothing) {
  const PlanSearch search = Search(OpenSpec(), DevicePool::Mode::kSerial);
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_FALSE(search.candidates[0].confirmed);
  EXPECT_FALSE(search.candidates[0].rehearsed_seconds.has_value());
}

}  // namespace
}  // namespace penstock
