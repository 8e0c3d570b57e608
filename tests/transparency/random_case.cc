#include "tests/transparency/random_case.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/autograd/seeds.h"
#include "engine/plan/planner.h"
#include "engine/schedule/generators.h"

namespace penstock::testing {
namespace {

constexpr int64_t kMostStages = 5;
constexpr int64_t kMostRows = 12;
constexpr int64_t kMostMicroBatches = 8;
constexpr int64_t kIgnoredLabel = -100;

std::vector<int> RandomBalance(Dice& dice, int64_t layers) {
  const int64_t stages = dice.Between(1, std::min(kMostStages, layers));
  std::vector<int> balance(stages, 1);
  for (int64_t rest = layers - stages; rest > 0; --rest) ++balance[dice.Below(stages)];
  return balance;
}

// One to three different ones, in any order, often with one device for several stages.
std::vector<std::string> RandomDevices(Dice& dice, size_t stages) {
  const std::vector<Device> known = RandomCaseDevices();
  const int64_t used = dice.Between(1, static_cast<int64_t>(known.size()));
  std::vector<std::string> names;
  for (size_t s = 0; s < stages; ++s) names.push_back(known[dice.Below(used)].name);
  return names;
}

ScheduleSpec RandomSchedule(Dice& dice) {
  std::vector<std::string> kinds;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (kind.trains) kinds.emplace_back(kind.name);
  }
  return {dice.Of(kinds), static_cast<int>(dice.Between(1, kMostMicroBatches)),
          dice.Of<CheckpointMode>({CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever})};
}

OptimizerSpec RandomOptimizer(Dice& dice) {
  OptimizerSpec optimizer;
  if (dice.OneIn(2)) {
    optimizer.name = "sgd";
    optimizer.options = {{"learning_rate", 0.05}, {"momentum", dice.Of<double>({0.0, 0.9})}};
  } else {
    optimizer.name = "adamw";
    optimizer.options = {{"learning_rate", 0.01}};
  }
  optimizer.options["weight_decay"] = dice.Of<double>({0.0, 0.1});
  optimizer.clip_norm = dice.Of<double>({0.0, 0.0, 0.3, 2.0});
  if (dice.OneIn(3)) optimizer.learning_rate_schedule = {"warmup_cosine", 2, 4, 0.1};
  return optimizer;
}

RandomContribution RandomMiniBatch(Dice& dice) {
  return {dice.Between(1, kMostRows), static_cast<int>(dice.Between(1, kMostMicroBatches))};
}

RandomStep MakeRandomStep(Dice& dice) {
  RandomStep step;
  step.whole = !dice.OneIn(3);
  step.total_given = !step.whole && dice.OneIn(2);
  const int64_t contributions = step.whole ? 1 : dice.Between(1, 3);
  for (int64_t i = 0; i < contributions; ++i) step.contributions.push_back(RandomMiniBatch(dice));
  return step;
}

std::string Describe(const RandomContribution& one) { return absl::StrCat(one.rows, " rows in ", one.micro_batches); }

}  // namespace

std::vector<Device> RandomCaseDevices() { return {{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}, {"cpu:2", {0}, 0}}; }

RandomCase MakeRandomCase(uint64_t seed) {
  Dice dice(seed);
  RandomCase one;
  one.seed = seed;
  RandomModel model = MakeRandomModel(dice);
  one.inputs = model.inputs;
  one.input_width = model.input_width;
  one.output_width = model.output_width;
  one.spec.model = std::move(model.spec);
  one.spec.cut.balance = RandomBalance(dice, static_cast<int64_t>(one.spec.model.layers.size()));
  one.spec.devices = RandomDevices(dice, one.spec.cut.balance.size());
  one.spec.schedule = RandomSchedule(dice);
  one.spec.optimizer = RandomOptimizer(dice);
  one.spec.loss.name = dice.OneIn(2) ? "mean_squared_error" : "cross_entropy";
  one.spec.seed = seed;
  one.mode = dice.OneIn(2) ? DevicePool::Mode::kSerial : DevicePool::Mode::kThreads;
  const int64_t steps = dice.Between(2, 3);
  for (int64_t i = 0; i < steps; ++i) one.steps.push_back(MakeRandomStep(dice));
  one.inference = RandomMiniBatch(dice);
  return one;
}

std::string Describe(const RandomCase& one) {
  const ScheduleSpec& schedule = one.spec.schedule;
  const OptimizerSpec& optimizer = one.spec.optimizer;
  std::string text = absl::StrCat(
      "seed ", one.seed, "\n  layers: ", Describe(one.spec.model), "\n  inputs: ", one.inputs, " of width ",
      one.input_width, "\n  balance ", absl::StrJoin(one.spec.cut.balance, ", "), " on ",
      absl::StrJoin(one.spec.devices, ", "), one.mode == DevicePool::Mode::kSerial ? ", serial" : ", threads", "\n  ",
      schedule.kind, ", ", std::string(CheckpointModeName(schedule.checkpoint)), ", ", one.spec.loss.name, ", ",
      optimizer.name);
  for (const auto& [name, value] : optimizer.options) absl::StrAppend(&text, " ", name, "=", OptionText(value));
  absl::StrAppend(&text, " clip=", optimizer.clip_norm, " ", optimizer.learning_rate_schedule.name);
  for (const RandomStep& step : one.steps) {
    std::vector<std::string> parts;
    for (const RandomContribution& part : step.contributions) parts.push_back(Describe(part));
    absl::StrAppend(&text, "\n  ", step.whole ? "TrainStep " : "contributions ", absl::StrJoin(parts, " + "),
                    step.total_given ? ", total given" : "");
  }
  absl::StrAppend(&text, "\n  inference ", Describe(one.inference));
  return text;
}

RandomBatch MakeRandomBatch(const RandomCase& one, int number, int64_t rows) {
  at::Generator generator = InitialGenerator(one.seed ^ 0x7e57, LayerIndex(number));
  const at::ScalarType type = one.spec.model.dtype == "fp64" ? at::kDouble : at::kFloat;
  RandomBatch batch;
  for (char letter : one.inputs) {
    if (letter == 't') {
      batch.inputs.emplace_back(at::randn({rows, one.input_width}, generator, type));
    } else if (letter == 'i') {
      batch.inputs.emplace_back(at::randint(5, {rows}, generator, at::kLong));
    } else if (letter == 'w') {
      batch.inputs.emplace_back(WholeTensor{at::randn({one.input_width}, generator, type)});
    } else {
      batch.inputs.push_back(letter == 'k'   ? Value(3)
                             : letter == 'x' ? Value("text")
                             : letter == 'l' ? Value::List({Value(1)})
                                             : Value());
    }
  }
  if (one.spec.loss.name == "mean_squared_error") {
    batch.target = at::randn({rows, one.output_width}, generator, type);
  } else {
    batch.target = at::randint(one.output_width, {rows}, generator, at::kLong);
    if (number % 3 == 1) batch.target.masked_fill_(batch.target.eq(0), kIgnoredLabel);
  }
  return batch;
}

}  // namespace penstock::testing
