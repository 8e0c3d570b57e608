#include "tests/transparency/random_case.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/autograd/seeds.h"
#include "engine/base/check.h"
#include "engine/optim/optimizer.h"
#include "engine/plan/planner.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/imported.h"
#include "tests/support/plain_reference.h"

namespace penstock::testing {
namespace {

constexpr int64_t kMaxLanesOfACase = 5;
constexpr int64_t kMaxChunks = 4;
constexpr int64_t kMaxRows = 12;
constexpr int64_t kMaxMicroBatchesOfACase = 8;
constexpr int64_t kIgnoredLabel = -100;

// The kind last, so that every kind gets on with few layers: one with more chunks than there are layers has no case.
void RandomKind(Dice& dice, int64_t layers, ScheduleSpec& schedule) {
  std::vector<ScheduleKind> kinds;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (kind.trains && kind.min_chunks <= layers) kinds.push_back(kind);
  }
  const ScheduleKind kind = dice.Of(kinds);
  schedule.kind = std::string(kind.name);
  const int64_t most = std::min<int64_t>({kind.max_chunks, kMaxChunks, layers});
  schedule.chunks = static_cast<int>(dice.Between(kind.min_chunks, most));
}

// Lists that nobody would write: any rank may do next what can be done by now. Weight gradients ascend, as they must.
Schedule RandomLists(Dice& dice, Placement placement, int ranks, int chunks, int micro_batches) {
  const int stages = ranks * chunks;
  Schedule lists{.kind = "random", .stages = stages, .micro_batches = micro_batches, .lanes = {}};
  lists.lanes.resize(ranks);
  std::vector<std::vector<int>> split(stages), input(stages, std::vector<int>(micro_batches));
  for (auto& one : split) {
    for (int m = 0; m < micro_batches; ++m) one.push_back(dice.OneIn(2));
  }
  std::vector<int> forward(stages), weight(stages);  // how many are done
  const auto has_gradient = [&](int s, int m) { return s + 1 == stages ? forward[s] > m : input[s + 1][m] == 1; };
  for (;;) {
    std::vector<Action> ready;
    for (int s = 0; s < stages; ++s) {
      if (forward[s] < (s == 0 ? micro_batches : forward[s - 1]))
        ready.push_back({ActionKind::kForward, s, forward[s]});
      for (int m = 0; m < micro_batches; ++m) {
        const bool next = weight[s] == m;
        if (split[s][m] == 1 && input[s][m] == 1 && next) ready.push_back({ActionKind::kWeightGradient, s, m});
        if (input[s][m] == 1 || !has_gradient(s, m)) continue;
        if (split[s][m] == 1) ready.push_back({ActionKind::kInputGradient, s, m});
        if (split[s][m] == 0 && next) ready.push_back({ActionKind::kBackward, s, m});
      }
    }
    if (ready.empty()) return lists;
    const Action action = dice.Of(ready);
    lists.lanes[LaneOfStage(placement, ranks, action.stage)].push_back(action);
    if (action.kind == ActionKind::kForward) ++forward[action.stage];
    if (AccumulatesGradient(action.kind)) ++weight[action.stage];
    if (ConsumesGradient(action.kind)) input[action.stage][action.micro_batch] = 1;
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
RandomLayout MakeRandomLayout(Dice& dice, int64_t layers) {
  RandomLayout layout;
  ScheduleSpec& schedule = layout.schedule;
  RandomKind(dice, layers, schedule);
  const int64_t lanes = dice.Between(1, std::min(kMaxLanesOfACase, layers / schedule.chunks));
  if (schedule.kind == "lag") schedule.lag = static_cast<int>(dice.Below(2 * lanes + 1));
  if (schedule.kind == "auto" && dice.OneIn(2)) {
    schedule.live_limit = static_cast<int>(lanes + dice.Below(lanes + 1));
  }
  const int least = MinMicroBatches(*FindScheduleKind(schedule.kind), static_cast<int>(lanes));
  schedule.micro_batches = least - 1 + static_cast<int>(dice.Between(1, kMaxMicroBatchesOfACase));
  if (dice.OneIn(5)) ImportRandomLists(dice, static_cast<int>(lanes), schedule);
  schedule.checkpoint = dice.Of<CheckpointMode>(
      {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever, CheckpointMode::kSkipAdjacent});
  layout.balance = RandomBalance(dice, layers, lanes, schedule.chunks);
  layout.devices = RandomDevices(dice, lanes);
  return layout;
}

// Of one parameter, or of all that the layers call so; frozen, or with options of their own.
ParameterGroup RandomGroup(Dice& dice, const std::vector<std::string>& names) {
  ParameterGroup group;
  std::string pattern = dice.Of(names);
  if (dice.OneIn(2)) pattern = absl::StrCat("*", pattern.substr(pattern.rfind('.')));
  group.patterns.push_back(std::move(pattern));
  group.frozen = dice.OneIn(2);
  if (dice.OneIn(2)) group.options["weight_decay"] = 0.2;
  if (dice.OneIn(2)) group.options["learning_rate"] = 0.02;
  return group;
}

OptimizerSpec RandomOptimizer(Dice& dice, const ModelSpec& model) {
  OptimizerSpec optimizer;
  optimizer.name = dice.OneIn(2) ? "sgd" : dice.Of(OptimizerNames());
  optimizer.options = {{"learning_rate", optimizer.name == "sgd" ? 0.05 : 0.01}};
  if (optimizer.name == "sgd" || optimizer.name == "rmsprop") {
    optimizer.options["momentum"] = dice.Of<double>({0.0, 0.9});
  }
  if (optimizer.name == "sgd" && std::get<double>(optimizer.options["momentum"]) > 0) {
    optimizer.options["nesterov"] = dice.OneIn(2);
  }
  if (optimizer.name == "rmsprop") optimizer.options["centered"] = dice.OneIn(2);
  optimizer.options["weight_decay"] = dice.Of<double>({0.0, 0.1});
  optimizer.clip_norm = dice.Of<double>({0.0, 0.0, 0.3, 2.0});
  if (dice.OneIn(3)) optimizer.learning_rate_schedule = {"warmup_cosine", 2, 4, 0.1};
  if (dice.OneIn(3)) {
    std::vector<std::string> names;
    for (const NamedTensor& gradient :
         PlainReference({.model = model, .loss = {}, .optimizer = optimizer}).Gradients()) {
      names.push_back(gradient.name);
    }
    const int64_t groups = names.empty() ? 0 : dice.Between(1, 2);
    for (int64_t i = 0; i < groups; ++i) optimizer.groups.push_back(RandomGroup(dice, names));
  }
  return optimizer;
}

RandomContribution RandomMiniBatch(Dice& dice, int most = kMaxMicroBatchesOfACase) {
  RandomContribution one;
  one.rows = dice.Between(1, kMaxRows);
  one.micro_batches = static_cast<int>(dice.Between(1, most));
  return one;
}

RandomContribution MakeRandomContribution(Dice& dice, int most, bool whole) {
  RandomContribution one = RandomMiniBatch(dice, most);
  one.halves = !whole && dice.OneIn(3);
  one.twice = one.halves && dice.OneIn(4);
  one.poisoned = dice.OneIn(16);
  if (dice.OneIn(6)) one.attempt = !whole && dice.OneIn(2) ? Attempt::kCancel : Attempt::kFault;
  one.broken_at = static_cast<double>(dice.Below(100)) / 100;
  return one;
}

RandomStep MakeRandomStep(Dice& dice, int most) {
  RandomStep step;
  step.whole = !dice.OneIn(3);
  step.total_given = !step.whole && dice.OneIn(2);
  step.backwards_last = !step.whole && dice.OneIn(2);
  step.discarded = !step.whole && dice.OneIn(8);
  if (dice.OneIn(6)) step.learning_rate = 0.03;
  if (dice.OneIn(6)) step.clip_norm = dice.Of<double>({0.0, 0.2});
  const int64_t contributions = step.whole ? 1 : dice.Between(1, 3);
  for (int64_t i = 0; i < contributions; ++i) {
    step.contributions.push_back(MakeRandomContribution(dice, most, step.whole));
  }
  return step;
}

// Lists have no more micro-batches than they have; of a kind there are as many as a call asks for.
int MaxMicroBatches(const RandomLayout& layout) {
  return layout.schedule.imported ? layout.schedule.micro_batches : kMaxMicroBatchesOfACase;
}

std::string Describe(const RandomContribution& one) {
  std::string text = absl::StrCat(one.rows, " rows in ", one.micro_batches);
  if (one.halves) absl::StrAppend(&text, one.twice ? ", Forward and two Backwards" : ", Forward and Backward");
  if (one.poisoned) absl::StrAppend(&text, ", not finite");
  if (one.attempt == Attempt::kFault) absl::StrAppend(&text, ", after a fault at ", one.broken_at);
  if (one.attempt == Attempt::kCancel) absl::StrAppend(&text, ", after a cancel at ", one.broken_at);
  return text;
}

std::string Describe(const RandomStep& step) {
  std::vector<std::string> parts;
  for (const RandomContribution& part : step.contributions) parts.push_back(Describe(part));
  std::string text = absl::StrCat(step.whole ? "TrainStep " : "contributions ", absl::StrJoin(parts, " + "));
  if (step.total_given) absl::StrAppend(&text, ", total given");
  if (step.backwards_last) absl::StrAppend(&text, ", Backwards last");
  if (step.discarded) absl::StrAppend(&text, ", discarded");
  if (step.learning_rate.has_value()) absl::StrAppend(&text, ", rate ", *step.learning_rate);
  if (step.clip_norm.has_value()) absl::StrAppend(&text, ", clip ", *step.clip_norm);
  return text;
}

std::string Describe(const RandomLayout& layout) {
  const ScheduleSpec& schedule = layout.schedule;
  std::string text =
      absl::StrCat("balance ", absl::StrJoin(layout.balance, ", "), " on ", absl::StrJoin(layout.devices, ", "), ", ",
                   schedule.kind, ", ", schedule.chunks, " chunks, lag ", schedule.lag.value_or(-1), ", live limit ",
                   schedule.live_limit.value_or(-1), ", ", std::string(CheckpointModeName(schedule.checkpoint)));
  if (schedule.imported) absl::StrAppend(&text, "\n", ToText(schedule.imported->actions));
  return text;
}

}  // namespace

std::vector<Device> RandomCaseDevices() { return {{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}, {"cpu:2", {0}, 0}}; }

RandomCase MakeRandomCase(uint64_t seed) {
  Dice dice(seed);
  RandomCase one;
  one.seed = seed;
  RandomModel model = MakeRandomModel(dice);
  one.inputs = model.inputs;
  one.input_shape = model.input_shape;
  one.output_shape = model.output_shape;
  one.spec.model = std::move(model.spec);
  const auto layers = static_cast<int64_t>(one.spec.model.layers.size());
  one.layout = MakeRandomLayout(dice, layers);
  one.spec.optimizer = RandomOptimizer(dice, one.spec.model);
  one.spec.loss.name = dice.OneIn(2) ? "mean_squared_error" : "cross_entropy";
  one.spec.seed = seed;
  one.mode = dice.OneIn(2) ? DevicePool::Mode::kSerial : DevicePool::Mode::kThreads;
  const int64_t steps = dice.Between(2, 3);
  if (dice.OneIn(4)) one.move = {static_cast<int>(dice.Between(1, steps - 1)), MakeRandomLayout(dice, layers)};
  for (int64_t i = 0; i < steps; ++i) {
    const bool moved = one.move.has_value() && i >= one.move->before_step;
    one.steps.push_back(MakeRandomStep(dice, MaxMicroBatches(moved ? one.move->layout : one.layout)));
  }
  one.inference = RandomMiniBatch(dice);
  return one;
}

PipelineSpec SpecOf(const RandomCase& one, const RandomLayout& layout) {
  PipelineSpec spec = one.spec;
  spec.cut.balance = layout.balance;
  spec.devices = layout.devices;
  spec.schedule = layout.schedule;
  return spec;
}

std::string Describe(const RandomCase& one) {
  const OptimizerSpec& optimizer = one.spec.optimizer;
  std::string text =
      absl::StrCat("seed ", one.seed, "\n  layers: ", Describe(one.spec.model), "\n  inputs: ", one.inputs, " of ",
                   absl::StrJoin(one.input_shape, "x"), "\n  ", Describe(one.layout),
                   one.mode == DevicePool::Mode::kSerial ? "\n  serial, " : "\n  threads, ", one.spec.loss.name, ", ",
                   optimizer.name);
  for (const auto& [name, value] : optimizer.options) absl::StrAppend(&text, " ", name, "=", OptionText(value));
  absl::StrAppend(&text, " clip=", optimizer.clip_norm, " ", optimizer.learning_rate_schedule.name);
  for (const ParameterGroup& group : optimizer.groups) {
    absl::StrAppend(&text, ", ", group.patterns[0], group.frozen ? " frozen" : "");
    for (const auto& [name, value] : group.options) absl::StrAppend(&text, " ", name, "=", OptionText(value));
  }
  for (size_t i = 0; i < one.steps.size(); ++i) {
    if (one.move.has_value() && one.move->before_step == static_cast<int>(i)) {
      absl::StrAppend(&text, "\n  moved to ", Describe(one.move->layout));
    }
    absl::StrAppend(&text, "\n  ", Describe(one.steps[i]));
  }
  absl::StrAppend(&text, "\n  inference ", Describe(one.inference));
  return text;
}

RandomBatch MakeRandomBatch(const RandomCase& one, int number, const RandomContribution& contribution) {
  at::Generator generator = InitialGenerator(one.seed ^ 0x7e57, LayerIndex(number));
  const at::ScalarType type = one.spec.model.dtype == "fp64" ? at::kDouble : at::kFloat;
  const int64_t rows = contribution.rows;
  const auto rows_of = [rows](std::vector<int64_t> shape) {
    shape.insert(shape.begin(), rows);
    return shape;
  };
  RandomBatch batch;
  for (char letter : one.inputs) {
    if (letter == 't') {
      batch.inputs.emplace_back(at::randn(rows_of(one.input_shape), generator, type));
    } else if (letter == 'i') {
      batch.inputs.emplace_back(at::randint(5, {rows}, generator, at::kLong));
    } else if (letter == 'w') {
      batch.inputs.emplace_back(WholeTensor{at::randn({one.input_shape.back()}, generator, type)});
    } else {
      batch.inputs.push_back(letter == 'k'   ? Value(3)
                             : letter == 'x' ? Value("text")
                             : letter == 'l' ? Value::List({Value(1)})
                                             : Value());
    }
  }
  if (contribution.poisoned) {
    const double bad =
        number % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : -std::numeric_limits<double>::infinity();
    batch.inputs[0].tensor()->view(-1)[0].fill_(bad);
  }
  if (one.spec.loss.name == "mean_squared_error") {
    batch.target = at::randn(rows_of(one.output_shape), generator, type);
  } else {
    std::vector<int64_t> shape = rows_of(one.output_shape);
    const int64_t classes = shape.back();
    shape.pop_back();
    batch.target = at::randint(classes, shape, generator, at::kLong);
    if (number % 3 == 1) batch.target.masked_fill_(batch.target.eq(0), kIgnoredLabel);
  }
  return batch;
}

}  // namespace penstock::testing
