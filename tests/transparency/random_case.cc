#include "tests/transparency/random_case.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/autograd/seeds.h"
#include "engine/base/check.h"
#include "engine/plan/planner.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/imported.h"

namespace penstock::testing {
namespace {

constexpr int64_t kMostLanes = 5;
constexpr int64_t kMostChunks = 4;
constexpr int64_t kMostRows = 12;
constexpr int64_t kMostMicroBatches = 8;
constexpr int64_t kIgnoredLabel = -100;

// The kind last, so that every kind gets on with few layers: one with more chunks than there are layers has no case.
void RandomKind(Dice& dice, int64_t layers, ScheduleSpec& schedule) {
  std::vector<ScheduleKind> kinds;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (kind.trains && kind.least_chunks <= layers) kinds.push_back(kind);
  }
  const ScheduleKind kind = dice.Of(kinds);
  schedule.kind = std::string(kind.name);
  const int64_t most = std::min<int64_t>({kind.most_chunks, kMostChunks, layers});
  schedule.chunks = static_cast<int>(dice.Between(kind.least_chunks, most));
}

// Lists that nobody would write: any rank may do next what can be done by now. Weight gradients ascend, as they must.
Schedule RandomLists(Dice& dice, Placement placement, int ranks, int chunks, int microbatches) {
  const int stages = ranks * chunks;
  Schedule lists{.kind = "random", .stages = stages, .microbatches = microbatches, .ranks = {}};
  lists.ranks.resize(ranks);
  std::vector<std::vector<int>> split(stages), input(stages, std::vector<int>(microbatches));
  for (auto& one : split) {
    for (int m = 0; m < microbatches; ++m) one.push_back(dice.OneIn(2));
  }
  std::vector<int> forward(stages), weight(stages);  // how many are done
  const auto has_gradient = [&](int s, int m) { return s + 1 == stages ? forward[s] > m : input[s + 1][m] == 1; };
  for (;;) {
    std::vector<Action> ready;
    for (int s = 0; s < stages; ++s) {
      if (forward[s] < (s == 0 ? microbatches : forward[s - 1])) ready.push_back({ActionKind::kForward, s, forward[s]});
      for (int m = 0; m < microbatches; ++m) {
        const bool next = weight[s] == m;
        if (split[s][m] == 1 && input[s][m] == 1 && next) ready.push_back({ActionKind::kWeightGradient, s, m});
        if (input[s][m] == 1 || !has_gradient(s, m)) continue;
        if (split[s][m] == 1) ready.push_back({ActionKind::kInputGradient, s, m});
        if (split[s][m] == 0 && next) ready.push_back({ActionKind::kBackward, s, m});
      }
    }
    if (ready.empty()) return lists;
    const Action action = dice.Of(ready);
    lists.ranks[RankOfStage(placement, ranks, action.stage)].push_back(action);
    if (action.kind == ActionKind::kForward) ++forward[action.stage];
    if (AccumulatesGradient(action.kind)) ++weight[action.stage];
    if (ConsumesGradient(action.kind)) input[action.stage][action.microbatch] = 1;
  }
}

void ImportRandomLists(Dice& dice, int lanes, ScheduleSpec& schedule) {
  const Placement placement = dice.OneIn(2) ? Placement::kV : Placement::kLooped;
  const Schedule lists = RandomLists(dice, placement, lanes, schedule.chunks, schedule.micro_batches);
  absl::StatusOr<ImportedSchedule> imported = ImportSchedule(dice.OneIn(2) ? ToCsv(lists) : ToText(lists));
  PENSTOCK_CHECK(imported.ok());
  schedule.imported = std::make_shared<const ImportedSchedule>(*std::move(imported));
  schedule.kind = std::string(kImportedKind);
  schedule.lag = std::nullopt;
  schedule.live_limit = std::nullopt;
}

std::vector<int> RandomBalance(Dice& dice, int64_t layers, int64_t lanes, int64_t chunks) {
  const int64_t stages = lanes * chunks;
  std::vector<int> balance(stages, 1);
  for (int64_t rest = layers - stages; rest > 0; --rest) ++balance[dice.Below(stages)];
  return balance;
}

// One to three different ones, in any order, often with one device for several stages.
std::vector<std::string> RandomDevices(Dice& dice, int64_t lanes) {
  const std::vector<Device> known = RandomCaseDevices();
  const int64_t used = dice.Between(1, static_cast<int64_t>(known.size()));
  std::vector<std::string> names;
  for (int64_t lane = 0; lane < lanes; ++lane) names.push_back(known[dice.Below(used)].name);
  return names;
}

// Schedule, cut and devices of so many layers.
void RandomPlan(Dice& dice, int64_t layers, PipelineSpec& spec) {
  ScheduleSpec& schedule = spec.schedule;
  RandomKind(dice, layers, schedule);
  const int64_t lanes = dice.Between(1, std::min(kMostLanes, layers / schedule.chunks));
  if (schedule.kind == "lag") schedule.lag = static_cast<int>(dice.Below(2 * lanes + 1));
  if (schedule.kind == "auto" && dice.OneIn(2)) {
    schedule.live_limit = static_cast<int>(lanes + dice.Below(lanes + 1));
  }
  const int least = LeastMicrobatches(*FindScheduleKind(schedule.kind), static_cast<int>(lanes));
  schedule.micro_batches = least - 1 + static_cast<int>(dice.Between(1, kMostMicroBatches));
  if (dice.OneIn(5)) ImportRandomLists(dice, static_cast<int>(lanes), schedule);
  schedule.checkpoint = dice.Of<CheckpointMode>(
      {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever, CheckpointMode::kSkipAdjacent});
  spec.cut.balance = RandomBalance(dice, layers, lanes, schedule.chunks);
  spec.devices = RandomDevices(dice, lanes);
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

RandomContribution RandomMiniBatch(Dice& dice, int most = kMostMicroBatches) {
  return {dice.Between(1, kMostRows), static_cast<int>(dice.Between(1, most))};
}

RandomStep MakeRandomStep(Dice& dice, int most) {
  RandomStep step;
  step.whole = !dice.OneIn(3);
  step.total_given = !step.whole && dice.OneIn(2);
  const int64_t contributions = step.whole ? 1 : dice.Between(1, 3);
  for (int64_t i = 0; i < contributions; ++i) step.contributions.push_back(RandomMiniBatch(dice, most));
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
  RandomPlan(dice, static_cast<int64_t>(one.spec.model.layers.size()), one.spec);
  one.spec.optimizer = RandomOptimizer(dice);
  one.spec.loss.name = dice.OneIn(2) ? "mean_squared_error" : "cross_entropy";
  one.spec.seed = seed;
  one.mode = dice.OneIn(2) ? DevicePool::Mode::kSerial : DevicePool::Mode::kThreads;
  const int64_t steps = dice.Between(2, 3);
  // Lists have no more micro-batches than they have; of a kind there are as many as a call asks for.
  const ScheduleSpec& schedule = one.spec.schedule;
  const int most = schedule.imported ? schedule.micro_batches : kMostMicroBatches;
  for (int64_t i = 0; i < steps; ++i) one.steps.push_back(MakeRandomStep(dice, most));
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
      schedule.kind, ", ", schedule.chunks, " chunks, lag ", schedule.lag.value_or(-1), ", live limit ",
      schedule.live_limit.value_or(-1), ", ", std::string(CheckpointModeName(schedule.checkpoint)), ", ",
      one.spec.loss.name, ", ", optimizer.name);
  for (const auto& [name, value] : optimizer.options) absl::StrAppend(&text, " ", name, "=", OptionText(value));
  absl::StrAppend(&text, " clip=", optimizer.clip_norm, " ", optimizer.learning_rate_schedule.name);
  if (schedule.imported) absl::StrAppend(&text, "\n", ToText(schedule.imported->actions));
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
