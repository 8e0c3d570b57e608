// The promise of engine_transparency_test, for whatever may be built from layers: random models, cut, placed, scheduled and
// fed at random, train and infer as plain autograd does on the same micro-batches, bit for bit.
//
// PENSTOCK_TRANSPARENCY_CASES is the number of cases (500), PENSTOCK_TRANSPARENCY_SEED the seed of the first one (1); case i
// has the seed of the first plus i. A failure prints its seed: with that seed and one case it is repeated alone.

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/loss.h"
#include "engine/schedule/generators.h"
#include "tests/support/plain_reference.h"
#include "tests/transparency/random_case.h"
#include "tests/transparency/value_layers.h"

namespace penstock::testing {
namespace {

constexpr int kMostFailures = 5;  // then the run ends: one fault often shows in many cases

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr) return fallback;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    ADD_FAILURE() << name << " must be a number, got " << text;
    return 0;
  }
  return value;
}

bool Same(double a, double b) { return a == b || (a != a && b != b); }

bool Same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  return at::equal(a, b) || at::allclose(a, b, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

// What differs, or nothing.
std::string Difference(const NamedTensors& got, const NamedTensors& want) {
  if (got.size() != want.size()) return absl::StrCat(got.size(), " tensors instead of ", want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].name != want[i].name) return absl::StrCat(got[i].name, " instead of ", want[i].name);
    if (Same(got[i].tensor, want[i].tensor)) continue;
    return absl::StrCat(got[i].name, " by ", got[i].tensor.sub(want[i].tensor).abs().max().item<double>());
  }
  return "";
}

// One case, run both ways side by side.
class SideBySide {
 public:
  SideBySide(const RandomCase& one, DevicePool& pool) : case_(one), pool_(pool) {}

  // What differs first, or nothing.
  std::string Run() {
    Pipeline::Options options;
    options.devices = &pool_;
    options.profile = {.rows = 2, .repeats = 1};
    auto made = Pipeline::Create(case_.spec, options);
    if (!made.ok()) return absl::StrCat("Create: ", made.status().ToString());
    pipeline_ = *std::move(made);
    loss_ = *MakeLoss(case_.spec.loss);
    plain_ = std::make_unique<PlainReference>(
        PlainSpec{case_.spec.model, case_.spec.loss, case_.spec.optimizer, case_.spec.seed});
    for (size_t s = 0; s < case_.steps.size(); ++s) {
      std::string different = Step(case_.steps[s]);
      if (different.empty()) different = StateDifference();
      if (!different.empty()) return absl::StrCat("step ", s, ": ", different);
    }
    return Inference();
  }

 private:
  NamedValues Named(const std::vector<Value>& inputs) const {
    const std::vector<TensorSignature>& signature = pipeline_->signature().inputs;
    NamedValues named;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool unnamed = i >= signature.size() || signature[i].name.empty();
      named.push_back({unnamed ? absl::StrCat("input", i) : signature[i].name, inputs[i]});
    }
    return named;
  }

  std::string Step(const RandomStep& step) {
    std::vector<RandomBatch> batches;
    int64_t total = 0;
    for (const RandomContribution& part : step.contributions) {
      batches.push_back(MakeRandomBatch(case_, batch_++, part.rows));
      total += loss_->Counted(batches.back().target);
    }
    for (size_t i = 0; i < batches.size(); ++i) {
      const RandomContribution& part = step.contributions[i];
      ContributionRequest request;
      request.inputs = Named(batches[i].inputs);
      request.target = batches[i].target;
      request.micro_batches = part.micro_batches;
      if (step.total_given) request.total_elements = total;
      auto got = step.whole ? pipeline_->TrainStep(request, {}) : pipeline_->ForwardBackward(request);
      if (!got.ok()) return got.status().ToString();
      const double sum = plain_->Contribute(batches[i].inputs, batches[i].target, part.micro_batches,
                                            step.total_given ? std::optional<int64_t>(total) : std::nullopt);
      const auto counted = static_cast<double>(loss_->Counted(batches[i].target));
      const double mean = counted == 0 ? 0 : sum * (step.total_given ? static_cast<double>(total) / counted : 1);
      if (!Same(*got->loss, mean)) return absl::StrCat("contribution ", i, ": loss ", *got->loss, " not ", mean);
      if (step.whole) return Applied(*got);
    }
    auto got = pipeline_->OptimizerStep({});
    return got.ok() ? Applied(*got) : got.status().ToString();
  }

  std::string Applied(const RunOutcome& got) {
    const PlainReference::StepResult want = plain_->Step();
    if (!Same(*got.gradient_norm, want.gradient_norm)) {
      return absl::StrCat("gradient norm ", *got.gradient_norm, " not ", want.gradient_norm);
    }
    if (got.applied != want.applied) return absl::StrCat("applied is ", *got.applied);
    if (got.learning_rate != want.learning_rate) return absl::StrCat("learning rate ", *got.learning_rate);
    return "";
  }

  std::string StateDifference() const {
    NamedTensors want = plain_->SavedTensors();
    for (const NamedTensor& slot : plain_->OptimizerState()) want.push_back({"optimizer/" + slot.name, slot.tensor});
    return Difference(pipeline_->ExportState(/*with_optimizer=*/true), want);
  }

  std::string Inference() {
    const RandomBatch batch = MakeRandomBatch(case_, batch_, case_.inference.rows);
    absl::Notification done;
    absl::StatusOr<ForwardOutcome> got;
    ForwardRequest request;
    request.inputs = Named(batch.inputs);
    request.micro_batches = case_.inference.micro_batches;
    pipeline_->InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> outcome) {
      got = std::move(outcome);
      done.Notify();
    });
    pool_.Wait(done);
    if (!got.ok()) return absl::StrCat("inference: ", got.status().ToString());
    const Tensors want = plain_->Infer(batch.inputs, case_.inference.micro_batches);
    if (got->outputs.size() != want.size()) return absl::StrCat("inference: ", got->outputs.size(), " outputs");
    for (size_t i = 0; i < want.size(); ++i) {
      const at::Tensor* tensor = got->outputs[i].value.tensor();
      if (!Same(tensor == nullptr ? at::Tensor() : *tensor, want[i])) return absl::StrCat("inference: output ", i);
    }
    return "";
  }

  const RandomCase& case_;
  DevicePool& pool_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Loss> loss_;
  std::unique_ptr<PlainReference> plain_;
  int batch_ = 0;
};

class RandomTransparency : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    ASSERT_TRUE(RegisterValueLayers().ok());
  }

  DevicePool& PoolOf(DevicePool::Mode mode) { return mode == DevicePool::Mode::kSerial ? serial_ : threads_; }

  DevicePool serial_{RandomCaseDevices(), DevicePool::Mode::kSerial};
  DevicePool threads_{RandomCaseDevices(), DevicePool::Mode::kThreads};
};

// PIPE-35: same results whatever the cut and the mode; PIPE-36: also with batch norm and in-layer randomness, for the plain
// loop runs on the same micro-batches and draws the same numbers.
TEST_F(RandomTransparency, PIPE_35_PIPE_36_RandomModelsTrainAndInferAsPlainAutograd) {
  const uint64_t cases = FromEnvironment("PENSTOCK_TRANSPARENCY_CASES", 500);
  const uint64_t first = FromEnvironment("PENSTOCK_TRANSPARENCY_SEED", 1);
  std::printf("%llu cases, seeds from %llu on\n", static_cast<unsigned long long>(cases),
              static_cast<unsigned long long>(first));
  ASSERT_GT(cases, 0);
  int failures = 0;
  for (uint64_t seed = first; seed < first + cases && failures < kMostFailures; ++seed) {
    const RandomCase one = MakeRandomCase(seed);
    std::string different;
    try {
      different = SideBySide(one, PoolOf(one.mode)).Run();
    } catch (const std::exception& error) {
      different = absl::StrCat("the plain loop threw ", error.what());
    }
    if (different.empty()) continue;
    ++failures;
    ADD_FAILURE() << different << "\n" << Describe(one);
  }
}

void CountKinds(const std::vector<LayerSpec>& layers, std::map<std::string, int>& seen) {
  for (const LayerSpec& layer : layers) {
    ++seen[layer.kind];
    CountKinds(layer.layers, seen);
  }
}

// A generator that never makes something would test nothing of it.
TEST_F(RandomTransparency, FiveHundredCasesHoldEverythingThatIsToBeTested) {
  std::map<std::string, int> seen;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    const RandomCase one = MakeRandomCase(seed);
    CountKinds(one.spec.model.layers, seen);
    ++seen[absl::StrCat(one.spec.cut.balance.size(), " stages")];
    const std::set<std::string> devices(one.spec.devices.begin(), one.spec.devices.end());
    ++seen[absl::StrCat(devices.size(), " devices")];
    ++seen[one.spec.schedule.kind];
    ++seen[absl::StrCat("checkpoint ", static_cast<int>(one.spec.schedule.checkpoint))];
    ++seen[one.spec.optimizer.name];
    ++seen[one.spec.loss.name];
    if (one.spec.optimizer.clip_norm > 0) ++seen["clip"];
    if (!one.spec.model.ties.empty()) ++seen["ties"];
    if (one.spec.model.deferred_batch_norm) ++seen["deferred"];
    if (one.spec.model.tuple_as_one_argument) ++seen["one argument"];
    if (one.inputs.size() > 1) ++seen["several inputs"];
    if (one.inputs.find('w') != std::string::npos) ++seen["whole tensor"];
    for (const RandomStep& step : one.steps) {
      if (!step.whole) ++seen["accumulation"];
      for (const RandomContribution& part : step.contributions) {
        if (part.rows < part.micro_batches) ++seen["fewer rows than micro-batches"];
        if (part.rows > part.micro_batches && part.rows % part.micro_batches != 0) ++seen["uneven"];
      }
    }
  }
  for (const char* wanted : {"batch_norm",    "detach",       "dropout",
                             "fork",          "gelu",         "identity",
                             "join",          "layer_norm",   "linear",
                             "mlp_block",     "pop_add",      "pop_cat",
                             "pop_item",      "relu",         "scale_each",
                             "sequential",    "stash",        "stash_item",
                             "values",        "1 stages",     "2 stages",
                             "3 stages",      "4 stages",     "5 stages",
                             "1 devices",     "2 devices",    "3 devices",
                             "checkpoint 0",  "checkpoint 1", "checkpoint 2",
                             "sgd",           "adamw",        "mean_squared_error",
                             "cross_entropy", "clip",         "ties",
                             "deferred",      "one argument", "several inputs",
                             "whole tensor",  "accumulation", "fewer rows than micro-batches",
                             "uneven"}) {
    EXPECT_GE(seen[wanted], 10) << wanted;
  }
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (!kind.trains) continue;
    EXPECT_GE(seen[std::string(kind.name)], 10) << kind.name;
  }
}

// The plain reference has a leaf for each use of a tied weight; here there truly is one tensor, and LibTorch alone sums.
class TiedTransparency : public RandomTransparency, public ::testing::WithParamInterface<std::vector<int>> {};

TEST_P(TiedTransparency, TrainsAsOneSharedWeightDoesUpToRounding) {
  constexpr int64_t kWidth = 6;
  constexpr double kRate = 0.1;
  PipelineSpec spec;
  const OptionMap square = {{"in", kWidth}, {"out", kWidth}};
  spec.model.layers = {
      {"linear", "a", square}, {"relu", "r", {}}, {"linear", "b", square}, {"gelu", "g", {}}, {"linear", "c", square}};
  spec.model.ties = {{{"a.weight", "b.weight", "c.weight"}}, {{"a.bias", "c.bias"}}};
  spec.cut.balance = GetParam();
  for (size_t s = 0; s < spec.cut.balance.size(); ++s) spec.devices.push_back(RandomCaseDevices()[s].name);
  spec.schedule = {"1f1b", 4, CheckpointMode::kExceptLast};
  spec.optimizer.name = "sgd";
  spec.optimizer.options = {{"learning_rate", kRate}};
  spec.loss.name = "mean_squared_error";
  spec.seed = 5;
  Pipeline::Options options;
  options.devices = &threads_;
  options.profile = {.rows = 2, .repeats = 1};
  auto pipeline = Pipeline::Create(spec, options);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();

  std::map<std::string, at::Tensor> leaves;
  for (const NamedTensor& parameter : (*pipeline)->ExportState(false)) {
    leaves[parameter.name] = parameter.tensor.clone().requires_grad_(true);
  }
  ASSERT_EQ(leaves.size(), 3u);  // a.weight, a.bias, b.bias: what is tied stands there once
  RandomCase batches;
  batches.inputs = "t";
  batches.input_width = batches.output_width = kWidth;
  batches.spec.loss = spec.loss;
  for (int step = 0; step < 4; ++step) {
    const RandomBatch batch = MakeRandomBatch(batches, step, 9);
    ContributionRequest request;
    request.inputs = NamedTensors{{"input", *batch.inputs[0].tensor()}};
    request.target = batch.target;
    auto got = (*pipeline)->TrainStep(request, {});
    ASSERT_TRUE(got.ok()) << got.status();

    const at::Tensor& weight = leaves.at("a.weight");
    const at::Tensor first = at::relu(at::linear(*batch.inputs[0].tensor(), weight, leaves.at("a.bias")));
    const at::Tensor second = at::gelu(at::linear(first, weight, leaves.at("b.bias")));
    const at::Tensor loss = at::mse_loss(at::linear(second, weight, leaves.at("a.bias")), batch.target);
    loss.backward();
    EXPECT_NEAR(*got->loss, loss.item<double>(), 1e-5 * loss.item<double>());
    for (auto& [name, leaf] : leaves) {
      leaf.set_data(leaf.detach().sub(leaf.grad(), kRate));
      leaf.mutable_grad().reset();
    }
  }
  for (const NamedTensor& parameter : (*pipeline)->ExportState(false)) {
    const at::Tensor want = leaves.at(parameter.name).detach();
    const double largest = want.abs().max().item<double>();
    EXPECT_TRUE(at::allclose(parameter.tensor, want, /*rtol=*/1e-5, /*atol=*/1e-5 * largest)) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, TiedTransparency,
                         ::testing::Values(std::vector<int>{5}, std::vector<int>{2, 3}, std::vector<int>{3, 2},
                                           std::vector<int>{2, 2, 1}));

}  // namespace
}  // namespace penstock::testing
