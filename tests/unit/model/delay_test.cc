// Layer kind `delay`. Sleeps are never early, so that times are compared with lower bounds only; what must not sleep
// gets a sleep that no test would survive.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>

#include "engine/autograd/split_backward.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"
#include "engine/model/model_signature.h"

namespace penstock {
namespace {

constexpr double kForever = 60'000;  // milliseconds

std::unique_ptr<Layer> Delay(double forward, double input, double weight, int64_t features = 0) {
  auto layers =
      BuildLayers({{"delay",
                    "layer",
                    {{"forward_ms", forward}, {"input_ms", input}, {"weight_ms", weight}, {"features", features}}}},
                  1);
  EXPECT_TRUE(layers.ok()) << layers.status();
  return std::move(layers->front().layer);
}

at::Tensor ApplyDelay(Layer& layer, const at::Tensor& input) { return layer.Forward(Batch(input), {}).TensorAt(0); }

double Millis(const std::function<void()>& body) {
  const int64_t start = RealClock()->NowNanos();
  body();
  return static_cast<double>(RealClock()->NowNanos() - start) * 1e-6;
}

TEST(DelayLayer, PassesOnItsInputPlusWhatItHasLearned) {
  auto layer = Delay(0, 0, 0);
  const at::Tensor x = at::ones({3, 4});
  {
    at::NoGradGuard no_graph;
    EXPECT_TRUE(at::equal(ApplyDelay(*layer, x), x));
    layer->parameters()[0].tensor.fill_(2);
    EXPECT_TRUE(at::equal(ApplyDelay(*layer, x), at::full_like(x, 3)));
  }
  EXPECT_TRUE(at::equal(x, at::ones({3, 4})));
  const Batch several = layer->Forward(Batch::Tuple({Value(x), Value(), Value(x.to(at::kLong))}), {});
  ASSERT_EQ(several.size(), 3);
  EXPECT_TRUE(at::equal(several.TensorAt(0).detach(), at::full_like(x, 3)));
  EXPECT_TRUE(at::equal(several.TensorAt(2), at::ones({3, 4}, at::kLong)));
  EXPECT_EQ(ApplyDelay(*layer, x.to(at::kDouble)).scalar_type(), at::kDouble);
}

TEST(DelayLayer, BothHalvesGiveTheGradientsOfASum) {
  for (bool split : {false, true}) {
    auto layer = Delay(0, 0, 0);
    const at::Tensor x = at::ones({3, 4}).requires_grad_(true);
    const at::Tensor y = ApplyDelay(*layer, x);
    const at::Tensor gradient = at::full_like(y, 0.5).detach();
    const at::Tensor shift = layer->parameters()[0].tensor;
    if (split) {
      auto owed = SplitBackward::InputHalf({y}, {gradient}, {x});
      EXPECT_FALSE(shift.grad().defined());
      owed->WeightHalf();
    } else {
      torch::autograd::backward({y}, {gradient});
    }
    EXPECT_TRUE(at::equal(x.grad(), gradient));
    EXPECT_EQ(shift.grad().item<float>(), 6);
  }
}

TEST(DelayLayer, EachPartTakesItsTime) {
  auto layer = Delay(2, 3, 4);
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  at::Tensor y;
  EXPECT_GE(Millis([&] { y = ApplyDelay(*layer, x); }), 2);
  std::unique_ptr<SplitBackward> owed;
  EXPECT_GE(Millis([&] { owed = SplitBackward::InputHalf({y}, {at::ones({3})}, {x}); }), 3);
  EXPECT_GE(Millis([&] { owed->WeightHalf(); }), 4);
  y = ApplyDelay(*layer, x);
  EXPECT_GE(Millis([&] { torch::autograd::backward({y}, {at::ones({3})}); }), 7);
  // Where the input asks for no gradient, all of it is the weight half's.
  y = ApplyDelay(*layer, at::ones({3}));
  owed = SplitBackward::InputHalf({y}, {at::ones({3})}, {});
  EXPECT_GE(Millis([&] { owed->WeightHalf(); }), 7);
}

TEST(DelayLayer, OutsideOfTrainingItMayTakeAnotherTime) {
  auto layers = BuildLayers({{"delay", "layer", {{"forward_ms", kForever}, {"inference_ms", 20.0}}}}, 1);
  ASSERT_TRUE(layers.ok()) << layers.status();
  const at::NoGradGuard no_graph;
  EXPECT_GE(Millis([&] { ApplyDelay(*layers->front().layer, at::ones({1, 1})); }), 20);
}

TEST(DelayLayer, AHalfDoesNotTakeTheTimeOfTheOther) {
  auto weight = Delay(0, 0, kForever);
  const at::Tensor x = at::ones({3}).requires_grad_(true);
  SplitBackward::InputHalf({ApplyDelay(*weight, x)}, {at::ones({3})}, {x});
  EXPECT_TRUE(x.grad().defined());
  // The node that sleeps for the input is not in the graph of the weight half: it is gone.
  auto input = Delay(0, 0.001, 0.001);
  at::Tensor y = ApplyDelay(*input, x);
  const std::weak_ptr<torch::autograd::Node> sleeps = y.grad_fn();
  auto owed = SplitBackward::InputHalf({y}, {at::ones({3})}, {x});
  y.reset();
  EXPECT_TRUE(sleeps.expired());
  owed->WeightHalf();
  // Without a graph only the forward takes time.
  at::NoGradGuard no_graph;
  ApplyDelay(*Delay(0, kForever, kForever), x);
}

TEST(DelayLayer, UsesNoCoreMeanwhile) {
  auto layer = Delay(50, 0, 0);
  const auto cpu_millis = [] {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
  };
  ApplyDelay(*layer, at::ones({3}));
  const double before = cpu_millis();
  ApplyDelay(*layer, at::ones({3}));
  EXPECT_LT(cpu_millis() - before, 25);
}

TEST(DelayLayer, SaysWhatItTakes) {
  std::vector<NamedLayer> open;
  open.push_back({"layer", Delay(0, 0, 0)});
  EXPECT_TRUE(SignatureOf(open, nullptr)->inputs.at(0).any);
  std::vector<NamedLayer> wide;
  wide.push_back({"layer", Delay(0, 0, 0, 8)});
  const ModelSignature signature = *SignatureOf(wide, nullptr);
  EXPECT_EQ(signature.inputs.at(0).shape, (std::vector<int64_t>{-1, 8}));
  EXPECT_EQ(signature.outputs.at(0).shape, (std::vector<int64_t>{-1, 8}));
}

TEST(DelayLayer, RefusesWhatIsWrong) {
  const auto reason = [](OptionMap options) {
    return ValuesOf(BuildLayers({{"delay", "layer", std::move(options)}}, 1).status())["field"];
  };
  EXPECT_EQ(reason({{"forward_ms", -1.0}}), "spec.model.layers[0].options[forward_ms]");
  EXPECT_EQ(reason({{"weight_ms", 60'001.0}}), "spec.model.layers[0].options[weight_ms]");
  EXPECT_EQ(reason({{"backward_ms", 1.0}}), "spec.model.layers[0].options[backward_ms]");
  EXPECT_EQ(ReasonOf(RunTorch([] { ApplyDelay(*Delay(0, 0, 0), at::ones({3}, at::kLong)); })), "TENSOR_SIGNATURE");
  EXPECT_EQ(ReasonOf(RunTorch([] { ApplyDelay(*Delay(0, 0, 0, 4), at::ones({3, 3})); })), "TENSOR_SIGNATURE");
}

}  // namespace
}  // namespace penstock
