// Rules and rates, against the same formulas in double precision.

#include "engine/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr int kElements = 19;  // not a multiple of any vector length
constexpr double kRate = 0.05;

// Gradient of parameter `which` in step `step`, element `i`.
double Gradient(int which, int step, int i) { return std::sin(1.0 + which * 3 + step * 0.7 + i * 0.31); }

NamedTensors Parameters() {
  NamedTensors parameters;
  for (int which = 0; which < 2; ++which) {
    at::Tensor values = at::empty({kElements});
    for (int i = 0; i < kElements; ++i) values[i] = std::cos(which + i * 0.2);
    parameters.push_back({"p" + std::to_string(which), values.requires_grad_(true)});
  }
  return parameters;
}

void SetGradients(const NamedTensors& parameters, int step) {
  for (size_t which = 0; which < parameters.size(); ++which) {
    at::Tensor gradient = at::empty({kElements});
    for (int i = 0; i < kElements; ++i) gradient[i] = Gradient(static_cast<int>(which), step, i);
    at::Tensor(parameters[which].tensor).mutable_grad() = gradient;
  }
}

OptimizerSpec Spec(const std::string& name, OptionMap options) {
  OptimizerSpec spec;
  spec.name = name;
  spec.options = std::move(options);
  return spec;
}

// Every rule, with all that it can keep and all that it reads of the parameters.
std::vector<OptimizerSpec> AllRules() {
  std::vector<OptimizerSpec> specs = {Spec("sgd", {}), Spec("rmsprop", {}), Spec("sgd", {{"momentum", 0.9}})};
  specs.push_back(Spec("rmsprop", {{"momentum", 0.9}, {"centered", true}}));
  for (const std::string& name : OptimizerNames()) specs.push_back(Spec(name, {{"weight_decay", 0.1}}));
  return specs;
}

// Scaled in place or by copies, all at once or in groups: the same bits, and copies leave the gradients alone.
TEST(OptimizerTest, AStepThatKeepsGradientsDoesTheSame) {
  for (const OptimizerSpec& spec : AllRules()) {
    std::vector<NamedTensors> runs;
    for (const bool keeps : {false, true}) {
      NamedTensors parameters;
      for (int i = 0; i < 4; ++i) {  // three groups: two large ones, which fill one each, and the rest
        const int64_t size = i < 2 ? (int64_t{5} << 20) : 19 + i;
        parameters.push_back({"p", at::arange(size, at::kFloat).sin_().requires_grad_(true)});
      }
      parameters.push_back({"unused", at::ones({3}).requires_grad_(true)});
      auto optimizer = MakeOptimizer(spec, {parameters}).value();
      for (int step = 0; step < 2; ++step) {
        for (int i = 0; i < 4; ++i) {
          const at::Tensor& parameter = parameters[i].tensor;
          at::Tensor(parameter).mutable_grad() = at::arange(parameter.numel(), at::kFloat).cos_();
        }
        keeps ? optimizer->StepKeepingGradients(kRate, 0.3) : optimizer->Step(kRate, 0.3);
        const at::Tensor& gradient = parameters[0].tensor.grad();
        EXPECT_EQ(at::equal(gradient, at::arange(gradient.numel(), at::kFloat).cos_()), keeps);
      }
      const size_t per_parameter = 1 + optimizer->State().size() / 5;
      EXPECT_EQ(optimizer->Changing().size(), 4 * per_parameter);
      for (NamedTensor& state : optimizer->State()) parameters.push_back(std::move(state));
      runs.push_back(std::move(parameters));
    }
    ASSERT_EQ(runs[0].size(), runs[1].size());
    for (size_t i = 0; i < runs[0].size(); ++i) EXPECT_TRUE(at::equal(runs[0][i].tensor, runs[1][i].tensor)) << i;
  }
}

// Runs `steps` steps and expects element by element what `rule(p, g, step)` makes of each.
template <typename Rule>
void ExpectRule(const OptimizerSpec& spec, int steps, double scale, Rule rule) {
  const NamedTensors parameters = Parameters();
  const NamedTensors start = Parameters();
  auto optimizer = MakeOptimizer(spec, {parameters});
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  for (int step = 0; step < steps; ++step) {
    SetGradients(parameters, step);
    (*optimizer)->Step(kRate, scale);
  }
  for (int which = 0; which < 2; ++which) {
    for (int i = 0; i < kElements; ++i) {
      double value = start[which].tensor[i].item<double>();
      auto state = rule;  // a copy with fresh state for each element
      for (int step = 0; step < steps; ++step) value = state(value, scale * Gradient(which, step, i), step);
      ASSERT_NEAR(parameters[which].tensor[i].item<double>(), value, 2e-6) << which << " " << i;
    }
  }
}

TEST(Sgd, StepsAgainstTheGradient) {
  ExpectRule(Spec("sgd", {}), 3, 1, [](double p, double g, int) { return p - kRate * g; });
  ExpectRule(Spec("sgd", {{"weight_decay", 0.1}}), 3, 1,
             [](double p, double g, int) { return p - kRate * (g + 0.1 * p); });
}

TEST(Sgd, AddsUpMomentum) {
  ExpectRule(Spec("sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}}), 4, 0.25,
             [v = 0.0](double p, double g, int) mutable {
               v = 0.9 * v + g + 0.1 * p;
               return p - kRate * v;
             });
}

TEST(Sgd, LooksAheadWithNesterovsRule) {
  ExpectRule(Spec("sgd", {{"momentum", 0.9}, {"nesterov", true}}), 4, 1, [v = 0.0](double p, double g, int) mutable {
    v = 0.9 * v + g;
    return p - kRate * (g + 0.9 * v);
  });
}

TEST(Adamw, FollowsItsFormula) {
  for (double scale : {1.0, 0.3}) {
    ExpectRule(Spec("adamw", {{"beta1", 0.8}, {"beta2", 0.95}, {"epsilon", 1e-4}, {"weight_decay", 0.2}}), 5, scale,
               [m = 0.0, v = 0.0](double p, double g, int step) mutable {
                 p *= 1 - kRate * 0.2;
                 m = 0.8 * m + 0.2 * g;
                 v = 0.95 * v + 0.05 * g * g;
                 const double corrected_m = m / (1 - std::pow(0.8, step + 1));
                 const double corrected_v = v / (1 - std::pow(0.95, step + 1));
                 return p - kRate * corrected_m / (std::sqrt(corrected_v) + 1e-4);
               });
  }
}

TEST(Adam, AddsTheDecayToTheGradient) {
  ExpectRule(Spec("adam", {{"beta1", 0.8}, {"beta2", 0.95}, {"epsilon", 1e-4}, {"weight_decay", 0.2}}), 5, 0.3,
             [m = 0.0, v = 0.0](double p, double g, int step) mutable {
               g += 0.2 * p;
               m = 0.8 * m + 0.2 * g;
               v = 0.95 * v + 0.05 * g * g;
               const double corrected_v = v / (1 - std::pow(0.95, step + 1));
               return p - kRate * m / (1 - std::pow(0.8, step + 1)) / (std::sqrt(corrected_v) + 1e-4);
             });
}

TEST(Adagrad, DividesByAllGradientsSoFar) {
  ExpectRule(Spec("adagrad",
                  {{"lr_decay", 0.3}, {"initial_accumulator_value", 0.5}, {"epsilon", 1e-4}, {"weight_decay", 0.2}}),
             5, 0.3, [sum = 0.5](double p, double g, int step) mutable {
               g += 0.2 * p;
               sum += g * g;
               return p - kRate / (1 + step * 0.3) * g / (std::sqrt(sum) + 1e-4);
             });
}

TEST(Rmsprop, DividesByTheRunningDeviation) {
  ExpectRule(Spec("rmsprop", {{"alpha", 0.8}, {"epsilon", 1e-3}, {"weight_decay", 0.2}}), 5, 0.3,
             [squares = 0.0](double p, double g, int) mutable {
               g += 0.2 * p;
               squares = 0.8 * squares + 0.2 * g * g;
               return p - kRate * g / (std::sqrt(squares) + 1e-3);
             });
  ExpectRule(Spec("rmsprop", {{"alpha", 0.8}, {"epsilon", 1e-2}, {"momentum", 0.9}, {"centered", true}}), 5, 1,
             [squares = 0.0, mean = 0.0, v = 0.0](double p, double g, int) mutable {
               squares = 0.8 * squares + 0.2 * g * g;
               mean = 0.8 * mean + 0.2 * g;
               v = 0.9 * v + g / (std::sqrt(squares - mean * mean) + 1e-2);
               return p - kRate * v;
             });
  ExpectRule(Spec("rmsprop", {{"epsilon", 1e-2}, {"centered", true}}), 3, 1,
             [squares = 0.0, mean = 0.0](double p, double g, int) mutable {
               squares = 0.99 * squares + 0.01 * g * g;
               mean = 0.99 * mean + 0.01 * g;
               return p - kRate * g / (std::sqrt(squares - mean * mean) + 1e-2);
             });
}

TEST(Nadam, LooksAheadWithAGrowingMomentum) {
  ExpectRule(Spec("nadam",
                  {{"beta1", 0.8}, {"beta2", 0.95}, {"epsilon", 1e-4}, {"momentum_decay", 0.1}, {"weight_decay", 0.2}}),
             5, 0.3, [m = 0.0, v = 0.0, product = 1.0](double p, double g, int step) mutable {
               const auto momentum = [](int t) { return 0.8 * (1 - 0.5 * std::pow(0.96, t * 0.1)); };
               const int t = step + 1;
               g += 0.2 * p;
               m = 0.8 * m + 0.2 * g;
               v = 0.95 * v + 0.05 * g * g;
               product *= momentum(t);
               const double of_gradient = (1 - momentum(t)) / (1 - product) * g;
               const double of_moment = momentum(t + 1) / (1 - product * momentum(t + 1)) * m;
               return p - kRate * (of_gradient + of_moment) / (std::sqrt(v / (1 - std::pow(0.95, t))) + 1e-4);
             });
}

TEST(Lion, StepsByASign) {
  for (double scale : {1.0, 0.3}) {
    ExpectRule(Spec("lion", {{"beta1", 0.8}, {"beta2", 0.95}, {"weight_decay", 0.2}}), 5, scale,
               [m = 0.0](double p, double g, int) mutable {
                 const double c = 0.8 * m + 0.2 * g;
                 m = 0.95 * m + 0.05 * g;
                 return p - kRate * ((c > 0 ? 1 : -1) + 0.2 * p);
               });
  }
}

TEST(Optimizers, LeaveAParameterWithoutGradientAsItIs) {
  for (const OptimizerSpec& spec : AllRules()) {
    const NamedTensors parameters = Parameters();
    const auto optimizer = *MakeOptimizer(spec, {parameters});
    SetGradients(parameters, 0);
    optimizer->Step(kRate, 1);
    const at::Tensor value = parameters[0].tensor.detach().clone();
    NamedTensors before;
    for (const NamedTensor& slot : optimizer->State()) before.push_back({slot.name, slot.tensor.clone()});
    SetGradients(parameters, 1);
    at::Tensor(parameters[0].tensor).mutable_grad().reset();
    optimizer->Step(kRate, 1);
    EXPECT_TRUE(parameters[0].tensor.equal(value));
    const NamedTensors after = optimizer->State();
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(after[i].tensor.equal(before[i].tensor), after[i].name.rfind("p0/", 0) == 0) << after[i].name;
    }
    at::Tensor(parameters[1].tensor).mutable_grad().reset();
    optimizer->Step(kRate, 1);  // none at all: nothing to do
  }
}

TEST(Optimizers, NameTheirStateAndTakeItFromTheStart) {
  const auto names = [](const OptimizerSpec& spec) {
    std::vector<std::string> all;
    const auto optimizer = *MakeOptimizer(spec, {Parameters()});
    for (const NamedTensor& slot : optimizer->State()) {
      const double initial = slot.name.ends_with("/momentum_product") ? 1 : slot.name.ends_with("_sum") ? 0.5 : 0;
      EXPECT_TRUE(slot.tensor.eq(initial).all().item<bool>()) << slot.name;
      all.push_back(slot.name);
    }
    return std::vector<std::string>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  };
  EXPECT_THAT(names(Spec("adamw", {})), ElementsAre("p0/first_moment", "p0/second_moment", "p0/step"));
  EXPECT_THAT(names(Spec("adam", {})), ElementsAre("p0/first_moment", "p0/second_moment", "p0/step"));
  EXPECT_THAT(names(Spec("nadam", {})),
              ElementsAre("p0/first_moment", "p0/second_moment", "p0/momentum_product", "p0/step"));
  EXPECT_THAT(names(Spec("adagrad", {{"initial_accumulator_value", 0.5}})), ElementsAre("p0/square_sum", "p0/step"));
  EXPECT_THAT(names(Spec("lion", {})), ElementsAre("p0/first_moment"));
  EXPECT_THAT(names(Spec("rmsprop", {})), ElementsAre("p0/square_average", "p0/step"));
  EXPECT_THAT(names(Spec("rmsprop", {{"centered", true}, {"momentum", 0.5}})),
              ElementsAre("p0/square_average", "p0/step", "p0/momentum", "p0/gradient_average"));
  EXPECT_THAT(names(Spec("sgd", {{"momentum", 0.5}})), ElementsAre("p0/momentum"));
  EXPECT_THAT(names(Spec("sgd", {})), ElementsAre());
  for (const OptimizerSpec& spec : AllRules()) {
    double tensors = 0;  // of the size of the parameter
    const auto optimizer = *MakeOptimizer(spec, {Parameters()});
    for (const NamedTensor& slot : optimizer->State()) tensors += slot.tensor.dim() / 2.0;
    EXPECT_EQ(OptimizerStateRatio(spec), tensors) << spec.name;
  }
}

TEST(Optimizers, MakeStateAsLargeParametersAreLaidOutAlsoForThoseWithGaps) {
  const at::Tensor wide = at::ones({2048, 4096});
  for (const at::Tensor& parameter : {wide, wide.t(), wide.slice(1, 0, 4096, 2)}) {
    NamedTensors kept;  // and its memory goes with the last who has it
    {
      const auto optimizer = *MakeOptimizer(Spec("adagrad", {}), {{{"p", parameter.detach().requires_grad_(true)}}});
      kept = optimizer->State();
    }
    EXPECT_EQ(kept[0].tensor.sizes(), parameter.sizes());
    EXPECT_EQ(kept[0].tensor.strides(), at::empty_like(parameter).strides());
    EXPECT_EQ(kept[0].tensor.count_nonzero().item<int64_t>(), 0);
    kept[0].tensor.fill_(1);
    EXPECT_EQ(kept[0].tensor.sum().item<float>(), static_cast<float>(parameter.numel()));
  }
}

TEST(Optimizers, GoOnFromACopyOfTheirState) {
  for (const OptimizerSpec& spec : AllRules()) {
    const NamedTensors first = Parameters();
    const NamedTensors second = Parameters();
    const auto one = *MakeOptimizer(spec, {first});
    const auto two = *MakeOptimizer(spec, {second});
    SetGradients(first, 0);
    one->Step(kRate, 1);
    {
      at::NoGradGuard no_graph;
      for (size_t i = 0; i < first.size(); ++i) at::Tensor(second[i].tensor).copy_(first[i].tensor);
      const NamedTensors from = one->State();
      NamedTensors to = two->State();
      for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
    }
    SetGradients(first, 1);
    SetGradients(second, 1);
    one->Step(kRate, 1);
    two->Step(kRate, 1);
    for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].tensor.equal(second[i].tensor)) << spec.name;
  }
}

TEST(CheckOptimizer, NamesWhatIsWrong) {
  const auto field = [](const OptimizerSpec& spec) {
    const absl::Status status = CheckOptimizer(spec);
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
    EXPECT_EQ(MakeOptimizer(spec, {Parameters()}).status(), status);
    return ValuesOf(status)["field"];
  };
  EXPECT_EQ(field(Spec("lamb", {})), "spec.optimizer.name");
  EXPECT_THAT(std::string(CheckOptimizer(Spec("lamb", {})).message()),
              HasSubstr("adagrad, adam, adamw, lion, nadam, rmsprop, sgd"));
  EXPECT_EQ(field(Spec("sgd", {{"beta1", 0.9}})), "spec.optimizer.options[beta1]");
  EXPECT_EQ(field(Spec("sgd", {{"nesterov", true}})), "spec.optimizer.options[nesterov]");
  EXPECT_EQ(field(Spec("adamw", {{"beta2", 1.0}})), "spec.optimizer.options[beta2]");
  EXPECT_EQ(field(Spec("adamw", {{"learning_rate", -1.0}})), "spec.optimizer.options[learning_rate]");
  OptimizerSpec spec = Spec("adamw", {});
  for (double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    spec.clip_norm = bad;
    EXPECT_EQ(field(spec), "spec.optimizer.clip_norm");
  }
  spec.clip_norm = 1;
  EXPECT_TRUE(CheckOptimizer(spec).ok());
  const std::string schedule = "spec.optimizer.learning_rate_schedule.";
  spec.learning_rate_schedule = {.name = "sawtooth", .warmup_steps = 0, .total_steps = 0, .final_ratio = 0};
  EXPECT_EQ(field(spec), schedule + "name");
  for (const char* endless : {"constant", "step"}) {
    spec.learning_rate_schedule = {.name = endless, .total_steps = 5, .step_size = 1};
    EXPECT_EQ(field(spec), schedule + "total_steps");
    spec.learning_rate_schedule = {.name = endless, .final_ratio = 0.5, .step_size = 1};
    EXPECT_EQ(field(spec), schedule + "final_ratio");
  }
  spec.learning_rate_schedule = {.name = "linear", .total_steps = 9, .step_size = 1};
  EXPECT_EQ(field(spec), schedule + "step_size");
  spec.learning_rate_schedule = {.name = "linear", .total_steps = 9, .gamma = 0.5};
  EXPECT_EQ(field(spec), schedule + "gamma");
  spec.learning_rate_schedule = {.name = "linear", .total_steps = 9, .power = 2};
  EXPECT_EQ(field(spec), schedule + "power");
  spec.learning_rate_schedule = {.name = "step", .step_size = 0};
  EXPECT_EQ(field(spec), schedule + "step_size");
  for (double bad : {0.0, 1.5, std::nan("")}) {
    spec.learning_rate_schedule = {.name = "step", .step_size = 3, .gamma = bad};
    EXPECT_EQ(field(spec), schedule + "gamma");
  }
  for (double bad : {0.0, 101.0, std::nan("")}) {
    spec.learning_rate_schedule = {.name = "polynomial", .total_steps = 9, .power = bad};
    EXPECT_EQ(field(spec), schedule + "power");
  }
  spec.learning_rate_schedule = {.name = "warmup_cosine", .warmup_steps = -5, .total_steps = 9, .final_ratio = 0};
  EXPECT_EQ(field(spec), schedule + "warmup_steps");
  spec.learning_rate_schedule = {.name = "warmup_cosine", .warmup_steps = 5, .total_steps = 5, .final_ratio = 0};
  EXPECT_EQ(field(spec), schedule + "total_steps");
  spec.learning_rate_schedule = {.name = "warmup_cosine", .warmup_steps = 5, .total_steps = 9, .final_ratio = 2};
  EXPECT_EQ(field(spec), schedule + "final_ratio");
}

TEST(LearningRate, IsConstantByDefault) {
  EXPECT_EQ(LearningRate(Spec("sgd", {}), 0), 0.01);
  EXPECT_EQ(LearningRate(Spec("adamw", {}), 1 << 20), 0.001);
  EXPECT_EQ(LearningRate(Spec("adamw", {{"learning_rate", 0.5}}), 7), 0.5);
}

TEST(LearningRate, WarmsUpAndFallsAlongACosine) {
  OptimizerSpec spec = Spec("adamw", {{"learning_rate", 2.0}});
  spec.learning_rate_schedule = {.name = "warmup_cosine", .warmup_steps = 4, .total_steps = 14, .final_ratio = 0.1};
  EXPECT_DOUBLE_EQ(LearningRate(spec, 0), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 3), 2);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 4), 2);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 9), 2 * (0.1 + 0.9 * 0.5));
  EXPECT_NEAR(LearningRate(spec, 14), 0.2, 1e-12);
  EXPECT_NEAR(LearningRate(spec, 1000), 0.2, 1e-12);
  spec.learning_rate_schedule.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(LearningRate(spec, 0), 2);
}

// PyTorch's LinearLR(1, 0.25, 8), PolynomialLR(8, 2) and StepLR(3, 0.5), step by step, after a warm-up of two steps.
TEST(LearningRate, FallsAsPyTorchsSchedulersDo) {
  OptimizerSpec spec = Spec("sgd", {{"learning_rate", 1.0}});
  const auto rates = [&spec](LearningRateSpec schedule) {
    schedule.warmup_steps = 2;
    if (schedule.name == "linear" || schedule.name == "polynomial") schedule.total_steps = 10;
    spec.learning_rate_schedule = schedule;
    EXPECT_TRUE(CheckOptimizer(spec).ok()) << CheckOptimizer(spec);
    std::vector<double> all;
    for (int step = 0; step < 12; ++step) all.push_back(LearningRate(spec, step));
    return all;
  };
  EXPECT_THAT(rates({.name = "linear", .final_ratio = 0.25}),
              Pointwise(DoubleNear(1e-12),
                        {0.5, 1., 1., 0.90625, 0.8125, 0.71875, 0.625, 0.53125, 0.4375, 0.34375, 0.25, 0.25}));
  EXPECT_THAT(rates({.name = "polynomial", .power = 2}),
              Pointwise(DoubleNear(1e-12),
                        {0.5, 1., 1., 0.765625, 0.5625, 0.390625, 0.25, 0.140625, 0.0625, 0.015625, 0., 0.}));
  EXPECT_THAT(rates({.name = "step", .step_size = 3, .gamma = 0.5}),
              Pointwise(DoubleNear(1e-12), {0.5, 1., 1., 1., 1., 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125}));
  EXPECT_THAT(rates({.name = "constant"}), ElementsAre(0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1));
}

}  // namespace
}  // namespace penstock
