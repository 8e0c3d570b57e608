// Batch norm and its deferred form, against LibTorch's own on the same micro-batches or on the mini-batch in one piece.

#include "engine/model/batch_norm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"
#include "engine/model/run_layer.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kChunks = 4;

// 16 images: channels scaled 1, 10, 100, image i shifted by 2^i.
at::Tensor Tilted(uint64_t seed = 0) {
  at::Tensor input = at::empty({16, 3, 32, 32}).uniform_(0, 1, InitialGenerator(seed, LayerIndex(0)));
  input.mul_(at::tensor({1.0f, 10.0f, 100.0f}).view({1, 3, 1, 1}));
  return input.add_(at::pow(2.0, at::arange(16, at::kFloat)).view({16, 1, 1, 1}));
}

// LibTorch's batch norm with the state that PyTorch's module has.
struct Plain {
  at::Tensor weight = at::ones({3}).requires_grad_(true);
  at::Tensor bias = at::zeros({3}).requires_grad_(true);
  at::Tensor mean = at::zeros({3});
  at::Tensor variance = at::ones({3});
  int64_t seen = 0;

  at::Tensor Train(const at::Tensor& input, std::optional<double> momentum = 0.1) {
    ++seen;
    return at::batch_norm(input, weight, bias, mean, variance, true, momentum.value_or(1.0 / seen), 1e-5, false);
  }
  at::Tensor Evaluate(const at::Tensor& input) const {
    return at::batch_norm(input, weight, bias, mean, variance, false, 0, 1e-5, false);
  }
};

LayerSpec Spec(OptionMap options = {}) {
  options.emplace("features", int64_t{3});
  return {"batch_norm", "norm", std::move(options)};
}

void EndStep(Layer& layer) {
  layer.CommitStatistics();
  layer.DiscardStatistics(MicroBatchIndex(0));
}

NamedLayer Make(OptionMap options = {}, const BuildOptions& build = {}) {
  auto layers = BuildLayers({Spec(std::move(options))}, 0, build);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return std::move(layers->front());
}
NamedLayer Deferred(OptionMap options = {}) { return Make(std::move(options), {.deferred_batch_norm = true}); }

at::Tensor Tensor(const NamedLayer& layer, const std::string& name) {
  for (const NamedTensors* tensors : {&layer.layer->parameters(), &layer.layer->buffers()}) {
    for (const NamedTensor& one : *tensors) {
      if (one.name == name) return one.tensor;
    }
  }
  ADD_FAILURE() << "no tensor " << name;
  return at::zeros({3});
}
int64_t Tracked(const NamedLayer& layer) { return Tensor(layer, "num_batches_tracked").item<int64_t>(); }

at::Tensor Forward(const NamedLayer& layer, const at::Tensor& input, int micro_batch, bool recomputing = false) {
  SkipTracker tracker;
  const LayerContext context = {
      .training = true, .recomputing = recomputing, .micro_batch = MicroBatchIndex(micro_batch)};
  return RunLayer(layer, Batch(input), context, tracker).TensorAt(0);
}

// A training forward in micro-batches, without commit.
at::Tensor Chunked(const NamedLayer& layer, const at::Tensor& input, int chunks = kChunks) {
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& chunk : input.chunk(chunks)) outputs.push_back(Forward(layer, chunk, outputs.size()));
  return at::cat(outputs);
}

at::Tensor Evaluate(const NamedLayer& layer, const at::Tensor& input) {
  SkipTracker tracker;
  return RunLayer(layer, Batch(input), {}, tracker).TensorAt(0);
}

void ExpectClose(const at::Tensor& got, const at::Tensor& want, double absolute = 1e-4) {
  EXPECT_TRUE(at::allclose(got.to(at::kDouble), want.to(at::kDouble), 1e-5, absolute)) << got << "\n" << want;
}

TEST(BatchNorm, Defaults) {
  const NamedLayer layer = Deferred();
  std::vector<std::string> names;
  for (const NamedTensor& one : layer.layer->parameters()) names.push_back(one.name);
  for (const NamedTensor& one : layer.layer->buffers()) names.push_back(one.name);
  EXPECT_THAT(names, ElementsAre("weight", "bias", "running_mean", "running_var", "num_batches_tracked"));
  EXPECT_TRUE(Tensor(layer, "weight").equal(at::ones({3})));
  EXPECT_TRUE(Tensor(layer, "bias").equal(at::zeros({3})));
  EXPECT_TRUE(Tensor(layer, "running_mean").equal(at::zeros({3})));
  EXPECT_TRUE(Tensor(layer, "running_var").equal(at::ones({3})));
  EXPECT_EQ(Tracked(layer), 0);
  EXPECT_TRUE(Deferred({{"affine", false}}).layer->parameters().empty());
  const at::Tensor input = Tilted();
  ExpectClose(Forward(layer, input, 0), Plain().Train(input), 1e-6);  // eps
  EndStep(*layer.layer);
  Plain plain;
  plain.Train(input);
  ExpectClose(Tensor(layer, "running_mean"), plain.mean, 1e-6);  // momentum
}

TEST(BatchNorm, PlainFormChangesItsStatisticsAsLibTorchDoesButWithTheStep) {
  for (const bool cumulative : {false, true}) {
    const NamedLayer layer = Make({{"cumulative", cumulative}});
    Plain plain;
    for (int step = 0; step < 3; ++step) {
      const at::Tensor input = Tilted(step);
      for (const at::Tensor& chunk : input.chunk(kChunks)) {
        plain.Train(chunk, cumulative ? std::nullopt : std::optional<double>(0.1));
      }
      Chunked(layer, input);
      EXPECT_EQ(Tracked(layer), step * kChunks) << "nothing before the commit";
      EndStep(*layer.layer);
      EXPECT_EQ(Tracked(layer), (step + 1) * kChunks);
      ExpectClose(Tensor(layer, "running_mean"), plain.mean, 1e-6);
      ExpectClose(Tensor(layer, "running_var"), plain.variance, 1e-6);
    }
  }
}

TEST(BatchNorm, TrainsOnTheMicroBatchesOwnStatisticsAndCommitsOnceAMinibatch) {
  const NamedLayer layer = Deferred();
  const at::Tensor input = Tilted();
  const std::vector<at::Tensor> chunks = input.chunk(kChunks);
  for (int i = 0; i < kChunks; ++i) {
    EXPECT_TRUE(Forward(layer, chunks[i], i).equal(Plain().Train(chunks[i]))) << i;
    EXPECT_EQ(Tracked(layer), 0);
    EXPECT_TRUE(Tensor(layer, "running_mean").equal(at::zeros({3})));
  }
  EndStep(*layer.layer);
  EXPECT_EQ(Tracked(layer), 1);
  EXPECT_FALSE(Tensor(layer, "running_mean").equal(at::zeros({3})));
  const at::Tensor mean = Tensor(layer, "running_mean").clone();
  EndStep(*layer.layer);
  EXPECT_EQ(Tracked(layer), 1) << "a commit without notes is none";
  EXPECT_TRUE(Tensor(layer, "running_mean").equal(mean));
}

TEST(BatchNorm, EvaluatesOnTheRunningStatisticsAndNotesNothing) {
  const NamedLayer layer = Deferred();
  Tensor(layer, "running_mean").copy_(at::tensor({1.0f, 2.0f, 3.0f}));
  Tensor(layer, "running_var").copy_(at::tensor({4.0f, 5.0f, 6.0f}));
  const at::Tensor input = Tilted();
  const at::Tensor want = (input - at::tensor({1.0f, 2.0f, 3.0f}).view({1, 3, 1, 1})) /
                          (at::tensor({4.0f, 5.0f, 6.0f}).view({1, 3, 1, 1}) + 1e-5).sqrt();
  ExpectClose(Evaluate(layer, input), want);
  EndStep(*layer.layer);
  EXPECT_EQ(Tracked(layer), 0);
  EXPECT_EQ(Tensor(layer, "running_mean")[0].item<float>(), 1);
}

TEST(BatchNorm, CountsAllValuesButOfTheSecondDimension) {
  // Micro-batches of unequal sizes weigh by their values: 3 rows of 2 x 2 against 1 row.
  const NamedLayer layer = Deferred({{"momentum", 1.0}});
  const at::Tensor input = at::rand({4, 3, 2, 2}) * 7;
  Forward(layer, input.narrow(0, 0, 3), 0);
  Forward(layer, input.narrow(0, 3, 1), 1);
  EndStep(*layer.layer);
  ExpectClose(Tensor(layer, "running_mean"), input.mean({0, 2, 3}), 1e-6);
  ExpectClose(Tensor(layer, "running_var"), input.var({0, 2, 3}, /*unbiased=*/true), 1e-5);
}

TEST(BatchNorm, StoresTheUnbiasedVarianceWithTheMomentum) {
  for (const bool cumulative : {false, true}) {
    const NamedLayer layer = Deferred({{"cumulative", cumulative}, {"momentum", 0.3}});
    Plain plain;
    for (int step = 0; step < 3; ++step) {
      const at::Tensor input = Tilted(step).narrow(0, 0, 8);
      plain.Train(input, cumulative ? std::nullopt : std::optional<double>(0.3));
      Chunked(layer, input);
      EndStep(*layer.layer);
      EXPECT_EQ(Tracked(layer), step + 1);
      ExpectClose(Tensor(layer, "running_mean"), plain.mean);
      ExpectClose(Tensor(layer, "running_var"), plain.variance);
    }
  }
}

TEST(BatchNorm, FollowsTheMicroBatchesThatAreReallyMade) {
  // 6 rows asked in 4 pieces make 3: one commit all the same, and the next mini-batch starts anew.
  const NamedLayer layer = Deferred();
  Plain plain;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor input = Tilted(step).narrow(0, 0, 6);
    ASSERT_EQ(input.chunk(4).size(), 3u);
    Chunked(layer, input);
    EndStep(*layer.layer);
    plain.Train(input);
    EXPECT_EQ(Tracked(layer), step + 1);
    ExpectClose(Tensor(layer, "running_mean"), plain.mean);
    ExpectClose(Tensor(layer, "running_var"), plain.variance);
  }
}

TEST(BatchNorm, AFailedMinibatchLeavesNoTrace) {
  const NamedLayer layer = Deferred();
  const NamedLayer clean = Deferred();
  const std::vector<at::Tensor> chunks = Tilted().chunk(kChunks);
  for (const NamedLayer* each : {&layer, &clean}) {
    Forward(*each, chunks[0], 0);
    Forward(*each, chunks[1], 1);
  }
  Forward(layer, chunks[2] * 1000, 2);  // the second contribution of the step fails
  Forward(layer, chunks[3] * 1000, 3);
  layer.layer->DiscardStatistics(MicroBatchIndex(2));
  for (const NamedLayer* each : {&layer, &clean}) {
    Forward(*each, chunks[3], 2);
    EndStep(*each->layer);
  }
  EXPECT_TRUE(Tensor(layer, "running_mean").equal(Tensor(clean, "running_mean")));
  EXPECT_TRUE(Tensor(layer, "running_var").equal(Tensor(clean, "running_var")));
  Forward(layer, chunks[0], 0);
  layer.layer->DiscardStatistics(MicroBatchIndex(0));
  EndStep(*layer.layer);
  EXPECT_EQ(Tracked(layer), 1);
}

TEST(BatchNorm, LargeMeansCancelNothing) {
  const NamedLayer layer = Deferred({{"momentum", 1.0}});
  // Around 1e5 a float still tells steps of 1/128. The squares are 1e10, of which it tells steps of 1024 only.
  const at::Tensor input = at::rand({32, 3}, at::kDouble).mul(4).add(1e5).to(at::kFloat);
  Chunked(layer, input, 8);
  EndStep(*layer.layer);
  const at::Tensor want = input.to(at::kDouble).var(at::IntArrayRef{0}, /*unbiased=*/true);
  EXPECT_TRUE(at::allclose(Tensor(layer, "running_var").to(at::kDouble), want, 2e-2, 0))
      << Tensor(layer, "running_var");
  EXPECT_GE(Tensor(layer, "running_var").min().item<double>(), 0);

  const NamedLayer same = Deferred({{"momentum", 1.0}});
  Chunked(same, at::full({8, 3}, 12345.678), 8);  // of single values: no variance, and none between them
  EndStep(*same.layer);
  EXPECT_TRUE(Tensor(same, "running_var").equal(at::zeros({3})));
}

TEST(BatchNorm, OrderOfForwardsDoesNotMatterToABit) {
  const std::vector<at::Tensor> chunks = Tilted().chunk(kChunks);
  for (const bool deferred : {false, true}) {
    const NamedLayer up = Make({{"deferred", deferred}});
    const NamedLayer down = Make({{"deferred", deferred}});
    for (int i = 0; i < kChunks; ++i) Forward(up, chunks[i], i);
    for (int i = kChunks - 1; i >= 0; --i) Forward(down, chunks[i], i);
    EndStep(*up.layer);
    EndStep(*down.layer);
    EXPECT_TRUE(Tensor(up, "running_mean").equal(Tensor(down, "running_mean")));
    EXPECT_TRUE(Tensor(up, "running_var").equal(Tensor(down, "running_var")));
  }
}

TEST(BatchNorm, TakesTwoToFiveDimensions) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{6, 3}, {6, 3, 4}, {6, 3, 4, 5}, {6, 3, 2, 2, 2}}) {
    const NamedLayer layer = Deferred();
    const at::Tensor input = at::rand(shape);
    EXPECT_TRUE(Forward(layer, input, 0).equal(Plain().Train(input)));
    EndStep(*layer.layer);
    EXPECT_EQ(Tracked(layer), 1);
  }
  const NamedLayer layer = Deferred();
  for (const at::Tensor& wrong : {at::rand({3}), at::rand({2, 4}), at::rand({2, 4, 3})}) {
    const absl::Status status = RunTorch([&] { Forward(layer, wrong, 0); });
    EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Forward(layer, at::zeros({0, 3}), 0).sizes(), at::IntArrayRef({0, 3}));
  EndStep(*layer.layer);
  EXPECT_EQ(Tracked(layer), 0) << "no values, no note";
}

TEST(BatchNorm, TheModelsOptionConvertsEveryOneThatHasStatistics) {
  const LayerSpec nested = {"sequential", "outer", {}, "", {}, {{"sequential", "inner", {}, "", {}, {Spec()}}}};
  ModelSpec spec = {"", {}, {Spec(), nested, Spec({{"track", false}}), Spec({{"deferred", false}})}};
  for (size_t i = 0; i < spec.layers.size(); ++i) spec.layers[i].name = "layer" + std::to_string(i);
  spec.deferred_batch_norm = true;
  const auto layers = *BuildLayers(*ExpandModel(spec), 0, BuildOptionsOf(spec));
  const at::Tensor input = Tilted();
  for (const NamedLayer& layer : layers) {
    Chunked(layer, input);
    EndStep(*layer.layer);
  }
  EXPECT_EQ(Tracked(layers[0]), 1);
  EXPECT_EQ(Tensor(layers[1], "inner.norm.num_batches_tracked").item<int64_t>(), 1) << "nested too";
  EXPECT_TRUE(Tensor(layers[1], "inner.norm.running_var").equal(Tensor(layers[0], "running_var")));
  EXPECT_TRUE(layers[2].layer->buffers().empty()) << "without statistics there is nothing to defer";
  ExpectClose(Evaluate(layers[2], input), Plain().Train(input), 1e-6);
  EXPECT_EQ(Tracked(layers[3]), kChunks) << "the layer's own word wins";
}

TEST(BatchNorm, StartsFromTheSameWeights) {
  ModelSpec spec = {"", {}, {{"linear", "a", {{"in", int64_t{3}}, {"out", int64_t{3}}}}, Spec()}};
  const auto plain = *BuildLayers(*ExpandModel(spec), 7, BuildOptionsOf(spec));
  spec.deferred_batch_norm = true;
  const auto deferred = *BuildLayers(*ExpandModel(spec), 7, BuildOptionsOf(spec));
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(plain[i].layer->parameters().size(), deferred[i].layer->parameters().size());
    for (size_t p = 0; p < plain[i].layer->parameters().size(); ++p) {
      EXPECT_EQ(plain[i].layer->parameters()[p].name, deferred[i].layer->parameters()[p].name);
      EXPECT_TRUE(plain[i].layer->parameters()[p].tensor.equal(deferred[i].layer->parameters()[p].tensor));
    }
    for (size_t b = 0; b < plain[i].layer->buffers().size(); ++b) {
      EXPECT_EQ(plain[i].layer->buffers()[b].name, deferred[i].layer->buffers()[b].name);
      EXPECT_TRUE(plain[i].layer->buffers()[b].tensor.equal(deferred[i].layer->buffers()[b].tensor));
    }
  }
}

TEST(BatchNorm, ConversionKeepsModeAndType) {
  const NamedLayer layer = Make({}, {.deferred_batch_norm = true, .dtype = "fp64"});
  const at::Tensor input = Tilted().to(at::kDouble);
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    EXPECT_EQ(Tensor(layer, name).scalar_type(), at::kDouble) << name;
    EXPECT_EQ(Tensor(layer, name).device(), at::kCPU);
  }
  const at::Tensor evaluated = Evaluate(layer, input);
  EXPECT_TRUE(evaluated.equal(Evaluate(layer, input))) << "evaluation stays evaluation";
  EXPECT_EQ(Tracked(layer), 0);
  Chunked(layer, input);
  EndStep(*layer.layer);
  EXPECT_EQ(Tensor(layer, "running_var").scalar_type(), at::kDouble);
  // In double all the way: 1e-12 would not hold if a note had passed through float.
  const at::Tensor mean = input.mean({0, 2, 3}) * 0.1;
  EXPECT_TRUE(at::allclose(Tensor(layer, "running_mean"), mean, 1e-12, 0));
}

TEST(BatchNorm, IsNotDeferredUnlessAsked) {
  const NamedLayer layer = Make();
  Chunked(layer, Tilted());
  EndStep(*layer.layer);
  EXPECT_EQ(Tracked(layer), kChunks);
  EXPECT_FALSE(ModelSpec().deferred_batch_norm);
}

TEST(BatchNorm, ARecomputationNotesNothing) {
  for (const bool deferred : {false, true}) {
    const NamedLayer once = Make({{"deferred", deferred}});
    const NamedLayer again = Make({{"deferred", deferred}});
    const std::vector<at::Tensor> chunks = Tilted().chunk(kChunks);
    for (int i = 0; i < kChunks; ++i) {
      Forward(once, chunks[i], i);
      const at::Tensor first = Forward(again, chunks[i], i);
      EXPECT_TRUE(Forward(again, chunks[i], i, /*recomputing=*/true).equal(first)) << "the same numbers";
    }
    for (const NamedLayer* each : {&once, &again}) EndStep(*each->layer);
    Forward(again, chunks[0], 0, /*recomputing=*/true);  // after the commit, as a late one
    EndStep(*again.layer);
    EXPECT_EQ(Tracked(again), deferred ? 1 : kChunks);
    EXPECT_TRUE(Tensor(again, "running_mean").equal(Tensor(once, "running_mean")));
    EXPECT_TRUE(Tensor(again, "running_var").equal(Tensor(once, "running_var")));
  }
}

// LibTorch computes in bf16 where neither a weight nor a running statistic is float, in float elsewhere.
TEST(BatchNorm, ARecomputationOfBf16GivesTheSameOutputsAndGradients) {
  for (const bool affine : {true, false}) {
    const NamedLayer layer = Make({{"affine", affine}});
    const at::Tensor values = Tilted().narrow(0, 0, 2).to(at::kBFloat16);
    const at::Tensor upstream = at::linspace(-1, 1, values.numel()).view(values.sizes()).to(at::kBFloat16);
    at::Tensor outputs[2];
    at::Tensor gradients[2];
    for (const int again : {0, 1}) {
      const at::Tensor input = values.clone().requires_grad_(true);
      outputs[again] = Forward(layer, input, 0, /*recomputing=*/again == 1);
      outputs[again].backward(upstream);
      gradients[again] = input.grad();
    }
    EXPECT_TRUE(outputs[1].equal(outputs[0])) << "affine: " << affine;
    EXPECT_TRUE(gradients[1].equal(gradients[0])) << "affine: " << affine;
  }
}

TEST(DeferredBatchNorm, DeferredBatchNormTransparency) {
  for (const int chunks : {1, 4}) {
    for (const bool with_gradient : {true, false}) {
      const NamedLayer layer = Deferred();
      Plain plain;
      const at::Tensor left = Tilted().requires_grad_(with_gradient);
      const at::Tensor right = left.detach().clone().requires_grad_(with_gradient);
      std::vector<at::Tensor> outputs;
      for (const at::Tensor& chunk : left.chunk(chunks)) outputs.push_back(plain.Train(chunk));
      const at::Tensor want = at::cat(outputs);
      const at::Tensor got = Chunked(layer, right, chunks);
      ExpectClose(got, want);
      want.mean().backward();
      got.mean().backward();
      ExpectClose(Tensor(layer, "weight").grad(), plain.weight.grad());
      EXPECT_EQ(right.grad().defined(), with_gradient);
      if (with_gradient) ExpectClose(right.grad(), left.grad());
    }
  }
}

TEST(DeferredBatchNorm, DeferredBatchNormRunningStats) {
  for (const bool cumulative : {false, true}) {
    const NamedLayer layer = Deferred({{"cumulative", cumulative}});
    Plain plain;
    const at::Tensor input = Tilted();
    plain.Train(input, cumulative ? std::nullopt : std::optional<double>(0.1));
    Chunked(layer, input);
    EndStep(*layer.layer);
    ExpectClose(Tensor(layer, "running_mean"), plain.mean);
    ExpectClose(Tensor(layer, "running_var"), plain.variance);
  }
}

TEST(DeferredBatchNorm, DeferredBatchNormEval) {
  const NamedLayer layer = Deferred();
  Plain plain;
  const at::Tensor input = Tilted();
  plain.Train(input);
  Chunked(layer, input);
  EndStep(*layer.layer);
  ExpectClose(Evaluate(layer, input), plain.Evaluate(input));
}

// One step of SGD on a parameter, and its gradient forgotten.
void Descend(const at::Tensor& parameter, double rate) {
  const at::NoGradGuard no_graph;
  at::Tensor changed = parameter;
  changed.sub_(parameter.grad() * rate);
  changed.mutable_grad() = at::Tensor();
}

TEST(DeferredBatchNorm, DeferredBatchNormOptimize) {
  const NamedLayer layer = Deferred();
  Plain plain;
  for (int i = 0; i < 5; ++i) {
    const at::Tensor input = Tilted(i);
    plain.Train(input).sum().backward();
    Chunked(layer, input).sum().backward();
    for (const at::Tensor& one : {plain.weight, plain.bias, Tensor(layer, "weight"), Tensor(layer, "bias")}) {
      Descend(one, 1.0);
    }
    EndStep(*layer.layer);
    ExpectClose(Evaluate(layer, input), plain.Evaluate(input), 0.1 * std::pow(10, i));
  }
}

TEST(DeferredBatchNorm, DeferredBatchNormConvBn) {
  const NamedLayer layer = Deferred();
  Plain plain;
  const at::Tensor input = Tilted();
  const at::Tensor first = at::empty({3, 3, 1, 1}).uniform_(-0.5, 0.5, InitialGenerator(4, LayerIndex(1)));
  const at::Tensor left = first.clone().requires_grad_(true);
  const at::Tensor right = first.clone().requires_grad_(true);
  const auto relative = [](const at::Tensor& got, const at::Tensor& want) {
    return ((got - want).abs() / want.abs()).max().item<double>();
  };

  const auto pass = [&] {
    const at::Tensor a = plain.Train(at::conv2d(input, left));
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& chunk : input.chunk(kChunks)) {
      outputs.push_back(Forward(layer, at::conv2d(chunk, right), outputs.size()));
    }
    EndStep(*layer.layer);
    const at::Tensor b = at::cat(outputs);
    EXPECT_FALSE(at::allclose(a, b)) << "by micro-batch, not by mini-batch";
    a.sum().backward();
    b.sum().backward();
  };
  pass();
  for (const at::Tensor& one :
       {left, right, plain.weight, plain.bias, Tensor(layer, "weight"), Tensor(layer, "bias")}) {
    Descend(one, 0.1);
  }
  EXPECT_FALSE(at::allclose(left, right)) << "trained on different outputs";
  ExpectClose(Tensor(layer, "running_mean"), plain.mean);
  EXPECT_LT(relative(Tensor(layer, "running_var"), plain.variance), 1e-4);
  pass();
  EXPECT_FALSE(at::allclose(Tensor(layer, "running_mean"), plain.mean, 1e-5, 1e-4));
  EXPECT_GT(relative(Tensor(layer, "running_var"), plain.variance), 1e-4);
}

TEST(DeferredBatchNorm, DeferredBatchNormInputRequiringGrad) {
  const NamedLayer layer = Deferred();
  const at::Tensor input = Tilted().requires_grad_(true);
  const at::Tensor output = Chunked(layer, input);
  EXPECT_TRUE(output.requires_grad());
  EndStep(*layer.layer);
  for (const NamedTensor& buffer : layer.layer->buffers()) {
    EXPECT_FALSE(buffer.tensor.requires_grad()) << buffer.name;
    EXPECT_EQ(buffer.tensor.grad_fn(), nullptr) << buffer.name;
  }
  output.square().sum().backward();  // the commit has changed nothing that the graph needs
  EXPECT_TRUE(input.grad().defined());
}

}  // namespace
}  // namespace penstock
