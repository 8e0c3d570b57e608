// What random cases have found, as small models of their own; and ties, against a weight that truly is shared.

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "tests/transparency/random_case.h"
#include "tests/transparency/side_by_side.h"

namespace penstock::testing {
namespace {

constexpr int64_t kFeatures = 6;
const OptionMap kSquare = {{"in", kFeatures}, {"out", kFeatures}};

LayerSpec Stash(const std::string& name) { return {"stash", "stash_" + name, {{"name", name}}}; }
LayerSpec Pop(const std::string& kind, const std::string& name) { return {kind, "pop_" + name, {{"name", name}}}; }

// Whether a model, cut so, equals the plain loop for each of some seeds: one alone may round both ways to the same.
std::string FirstDifference(std::vector<LayerSpec> layers, std::vector<int> balance, int64_t rows,
                            const std::string& dtype = "") {
  at::set_num_threads(1);
  DevicePool pool(RandomCaseDevices(), DevicePool::Mode::kSerial);
  RandomCase one;
  one.spec.model.layers = std::move(layers);
  one.spec.model.dtype = dtype;
  one.layout.balance = std::move(balance);
  one.layout.schedule = {"gpipe", 2, CheckpointMode::kNever};
  one.spec.optimizer.name = "sgd";
  one.spec.loss.name = "mean_squared_error";
  one.inputs = "t";
  one.input_shape = one.output_shape = {kFeatures};
  one.steps.resize(2);
  for (RandomStep& step : one.steps) step.contributions = {{.rows = rows, .micro_batches = 2}};
  one.inference = {.rows = rows};
  for (one.seed = one.spec.seed = 1; one.seed <= 20; one.spec.seed = ++one.seed) {
    const Difference difference = SideBySide(one, pool).Run();
    if (difference.found()) return difference.text + "\n" + Describe(one);
  }
  return "";
}

// Three uses of one tensor: a sum of three gradients depends on its order.
TEST(TransparencyEdges, ATensorThatIsStashedTwiceHasOneOrderOfItsGradients) {
  for (const std::vector<int>& balance :
       std::vector<std::vector<int>>{{8}, {3, 5}, {2, 6}, {3, 2, 3}, {2, 1, 1, 2, 2}}) {
    EXPECT_EQ(FirstDifference({{"linear", "a", kSquare},
                               Stash("x"),
                               Stash("y"),
                               {"linear", "b", kSquare},
                               Pop("pop_add", "x"),
                               {"gelu", "g", {}},
                               Pop("pop_add", "y"),
                               {"linear", "c", kSquare}},
                              balance, 7),
              "");
  }
}

// Behind a concatenation a gradient is a part of a larger one, until it goes to another stage: LibTorch's batch norm
// sums the two in another order, and its gelu approximates otherwise.
TEST(TransparencyEdges, AGradientThatIsPartOfALargerOneCountsAsOneThatIsWhole) {
  const std::vector<LayerSpec> sensitive = {{"batch_norm", "n", {{"features", kFeatures}}}, {"gelu", "n", {}}};
  for (const LayerSpec& layer : sensitive) {
    for (const char* dtype : {"fp32", "fp64"}) {
      for (const std::vector<int>& balance : std::vector<std::vector<int>>{{5}, {3, 2}, {4, 1}}) {
        EXPECT_EQ(FirstDifference({{"linear", "a", kSquare},
                                   Stash("x"),
                                   layer,
                                   Pop("pop_cat", "x"),
                                   {"linear", "b", {{"in", 2 * kFeatures}, {"out", kFeatures}}}},
                                  balance, 7, dtype),
                  "");
      }
    }
  }
}

TEST(TransparencyEdges, BatchNormTrainsOnSingleValuesInDoublePrecision) {
  EXPECT_EQ(
      FirstDifference({{"linear", "a", kSquare}, {"batch_norm", "n", {{"features", kFeatures}}}}, {1, 1}, 2, "fp64"),
      "");
}

// The plain reference has a leaf for each use of a tied weight; here there truly is one tensor, and LibTorch alone
// sums.
class TiedTransparency : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(TiedTransparency, TrainsAsOneSharedWeightDoesUpToRounding) {
  at::set_num_threads(1);
  constexpr double kRate = 0.1;
  PipelineSpec spec;
  spec.model.layers = {{"linear", "a", kSquare},
                       {"relu", "r", {}},
                       {"linear", "b", kSquare},
                       {"gelu", "g", {}},
                       {"linear", "c", kSquare}};
  spec.model.ties = {{{"a.weight", "b.weight", "c.weight"}}, {{"a.bias", "c.bias"}}};
  spec.cut.balance = GetParam();
  for (size_t s = 0; s < spec.cut.balance.size(); ++s) spec.devices.push_back(RandomCaseDevices()[s].name);
  spec.schedule = {"1f1b", 4, CheckpointMode::kExceptLast};
  spec.optimizer.name = "sgd";
  spec.optimizer.options = {{"learning_rate", kRate}};
  spec.loss.name = "mean_squared_error";
  spec.seed = 5;
  Pipeline::Options options;
  DevicePool pool(RandomCaseDevices(), DevicePool::Mode::kThreads);
  options.devices = &pool;
  options.profile = {.rows = 2, .repeats = 1};
  auto pipeline = Pipeline::Create(spec, options);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();

  std::map<std::string, at::Tensor> leaves;
  for (const NamedTensor& parameter : NamedTensors((*pipeline)->ExportState(false).value())) {
    leaves[parameter.name] = parameter.tensor.clone().requires_grad_(true);
  }
  ASSERT_EQ(leaves.size(), 3u);  // a.weight, a.bias, b.bias: what is tied stands there once
  RandomCase batches;
  batches.inputs = "t";
  batches.input_shape = batches.output_shape = {kFeatures};
  batches.spec.loss = spec.loss;
  for (int step = 0; step < 4; ++step) {
    const RandomBatch batch = MakeRandomBatch(batches, step, {.rows = 9});
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
  for (const NamedTensor& parameter : NamedTensors((*pipeline)->ExportState(false).value())) {
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
