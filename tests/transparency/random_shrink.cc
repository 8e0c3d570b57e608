#include "tests/transparency/random_shrink.h"

#include <algorithm>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace penstock::testing {
namespace {

using Numbers = std::vector<int64_t>;

RandomStep* StepAt(RandomCase& one, int64_t i) {
  return i < static_cast<int64_t>(one.steps.size()) ? &one.steps[i] : nullptr;
}

RandomContribution* PartAt(RandomCase& one, const Numbers& at) {
  RandomStep* step = StepAt(one, at[0]);
  if (step == nullptr || at[1] >= static_cast<int64_t>(step->contributions.size())) return nullptr;
  return &step->contributions[at[1]];
}

bool DropStep(RandomCase& one, const Numbers& at) {
  if (one.steps.size() < 2 || StepAt(one, at[0]) == nullptr) return false;
  one.steps.erase(one.steps.begin() + at[0]);
  if (one.move.has_value() && one.move->before_step > at[0]) --one.move->before_step;
  return true;
}

bool DropPart(RandomCase& one, const Numbers& at) {
  if (PartAt(one, at) == nullptr || one.steps[at[0]].contributions.size() < 2) return false;
  std::vector<RandomContribution>& parts = one.steps[at[0]].contributions;
  parts.erase(parts.begin() + at[1]);
  return true;
}

bool Calm(RandomCase& one, const Numbers& at) {
  RandomContribution* part = PartAt(one, at);
  if (part == nullptr || (!part->halves && !part->poisoned && part->attempt == Attempt::kNone)) return false;
  part->halves = part->twice = part->poisoned = false;
  part->attempt = Attempt::kNone;
  return true;
}

bool MakeCommon(RandomCase& one, const Numbers& at) {
  RandomStep* step = StepAt(one, at[0]);
  if (step == nullptr) return false;
  const bool whole = step->whole || (step->contributions.size() == 1 && !step->contributions[0].halves);
  if (step->whole == whole && !step->learning_rate.has_value() && !step->clip_norm.has_value() && !step->total_given &&
      !step->backwards_last && !step->discarded) {
    return false;
  }
  *step = {.whole = whole, .learning_rate = {}, .clip_norm = {}, .contributions = step->contributions};
  return true;
}

bool SetRows(RandomCase& one, const Numbers& at) {
  RandomContribution* part = PartAt(one, at);
  if (part == nullptr || at[2] < 1 || at[2] >= part->rows) return false;
  part->rows = at[2];
  return true;
}

bool SetSplit(RandomCase& one, const Numbers& at) {
  RandomContribution* part = PartAt(one, at);
  if (part == nullptr || at[2] < 1 || at[2] >= part->micro_batches) return false;
  part->micro_batches = static_cast<int>(at[2]);
  return true;
}

// The stage that holds a layer has one fewer; if it was its only one, a neighbour gives one.
bool DropFromBalance(RandomLayout& layout, int64_t layer) {
  size_t stage = 0;
  for (int64_t first = 0; first + layout.balance[stage] <= layer; ++stage) first += layout.balance[stage];
  if (layout.balance[stage] == 1) {
    const auto most = std::max_element(layout.balance.begin(), layout.balance.end());
    if (*most == 1) return false;
    stage = static_cast<size_t>(most - layout.balance.begin());
  }
  --layout.balance[stage];
  return true;
}

bool EraseLayer(RandomCase& one, int64_t layer) {
  ModelSpec& model = one.spec.model;
  if (model.layers.size() < 2 || layer >= static_cast<int64_t>(model.layers.size())) return false;
  if (!DropFromBalance(one.layout, layer)) return false;
  if (one.move.has_value() && !DropFromBalance(one.move->layout, layer)) return false;
  const std::string owner = model.layers[layer].name + ".";
  for (TieSpec& tie : model.ties) {
    const auto gone = [&](const std::string& parameter) { return absl::StartsWith(parameter, owner); };
    tie.parameters.erase(std::remove_if(tie.parameters.begin(), tie.parameters.end(), gone), tie.parameters.end());
  }
  const auto single = [](const TieSpec& tie) { return tie.parameters.size() < 2; };
  model.ties.erase(std::remove_if(model.ties.begin(), model.ties.end(), single), model.ties.end());
  model.layers.erase(model.layers.begin() + layer);
  return true;
}

bool IsPair(const LayerSpec& stash, const LayerSpec& pop) {
  const auto name = [](const LayerSpec& layer) {
    const auto found = layer.options.find("name");
    return found == layer.options.end() ? "skip" : std::get<std::string>(found->second);
  };
  const auto space = [](const LayerSpec& layer) {
    return layer.isolate.empty() ? "" : layer.isolate[0].skip_namespace;
  };
  return absl::StartsWith(stash.kind, "stash") && absl::StartsWith(pop.kind, "pop") && name(stash) == name(pop) &&
         space(stash) == space(pop);
}

bool DropLayer(RandomCase& one, const Numbers& at) {
  const std::vector<LayerSpec>& layers = one.spec.model.layers;
  const int64_t count = static_cast<int64_t>(layers.size());
  if (at[0] >= count) return false;
  for (int64_t other = at[0] + 1; other < count; ++other) {
    if (!IsPair(layers[at[0]], layers[other])) continue;
    return EraseLayer(one, other) && EraseLayer(one, at[0]);
  }
  return EraseLayer(one, at[0]);
}

bool Narrow(std::vector<LayerSpec>& layers, int64_t from, int64_t to) {
  bool any = false;
  for (LayerSpec& layer : layers) {
    for (const char* option : {"in", "out", "width", "features"}) {
      const auto found = layer.options.find(option);
      if (found == layer.options.end() || std::get<int64_t>(found->second) != from) continue;
      found->second = to;
      any = true;
    }
    any = Narrow(layer.layers, from, to) || any;
  }
  return any;
}

bool SetWidth(RandomCase& one, const Numbers& at) {
  if (at[1] < 1 || at[1] >= at[0]) return false;
  const bool any = Narrow(one.spec.model.layers, at[0], at[1]);
  std::replace(one.input_shape.begin(), one.input_shape.end(), at[0], at[1]);
  std::replace(one.output_shape.begin(), one.output_shape.end(), at[0], at[1]);
  return any;
}

bool SetLanes(RandomCase& one, const Numbers& at) {
  const auto layers = static_cast<int>(one.spec.model.layers.size());
  const auto lanes = static_cast<int>(at[0]);
  const std::vector<Device> devices = RandomCaseDevices();
  if (lanes < 1 || lanes > layers || lanes > static_cast<int>(devices.size())) return false;
  if (one.layout.schedule.kind == "gpipe" && static_cast<int>(one.layout.balance.size()) <= lanes) return false;
  RandomLayout layout;
  for (int lane = 0; lane < lanes; ++lane) {
    layout.balance.push_back((lane + 1) * layers / lanes - lane * layers / lanes);
    layout.devices.push_back(devices[lane].name);
  }
  layout.schedule = {.kind = "gpipe", .micro_batches = 1, .checkpoint = CheckpointMode::kNever};
  one.layout = layout;
  one.mode = DevicePool::Mode::kSerial;
  return true;
}

bool Stay(RandomCase& one, const Numbers&) {
  if (!one.move.has_value()) return false;
  one.move.reset();
  return true;
}

bool PlainOptimizer(RandomCase& one, const Numbers&) {
  OptimizerSpec plain;
  plain.name = "sgd";
  plain.options = {{"learning_rate", 0.05}};
  const OptimizerSpec& now = one.spec.optimizer;
  if (now.name == plain.name && now.options == plain.options && now.clip_norm == 0 && now.groups.empty() &&
      now.learning_rate_schedule.name == plain.learning_rate_schedule.name) {
    return false;
  }
  one.spec.optimizer = plain;
  return true;
}

bool PlainType(RandomCase& one, const Numbers&) {
  if (one.spec.model.dtype.empty() && one.spec.model.autocast.empty()) return false;
  one.spec.model.dtype = one.spec.model.autocast = "";
  return true;
}

bool Untie(RandomCase& one, const Numbers&) {
  if (one.spec.model.ties.empty()) return false;
  one.spec.model.ties.clear();
  return true;
}

struct Edit {
  absl::string_view name;
  size_t numbers;
  bool (*apply)(RandomCase& one, const Numbers& at);
};

constexpr Edit kEdits[] = {{"step", 1, DropStep},
                           {"part", 2, DropPart},
                           {"calm", 2, Calm},
                           {"common", 1, MakeCommon},
                           {"rows", 3, SetRows},
                           {"split", 3, SetSplit},
                           {"layer", 1, DropLayer},
                           {"width", 2, SetWidth},
                           {"lanes", 1, SetLanes},
                           {"stay", 0, Stay},
                           {"optimizer", 0, PlainOptimizer},
                           {"dtype", 0, PlainType},
                           {"untied", 0, Untie}};

bool ApplyEdit(absl::string_view text, RandomCase& one) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  Numbers at;
  for (absl::string_view number : absl::StrSplit(parts.second, '.', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(number, &at.emplace_back()) || at.back() < 0) return false;
  }
  for (const Edit& edit : kEdits) {
    if (edit.name == parts.first) return at.size() == edit.numbers && edit.apply(one, at);
  }
  return false;
}

void AddWidths(const std::vector<LayerSpec>& layers, std::vector<std::string>& edits) {
  for (const LayerSpec& layer : layers) {
    for (const char* option : {"in", "out", "width", "features"}) {
      const auto found = layer.options.find(option);
      if (found == layer.options.end()) continue;
      const int64_t width = std::get<int64_t>(found->second);
      for (int64_t less : {int64_t{1}, int64_t{2}, width / 2, width - 1}) {
        edits.push_back(absl::StrCat("width:", width, ".", less));
      }
    }
    AddWidths(layer.layers, edits);
  }
}

// What may be tried on a case, the largest cuts first.
std::vector<std::string> Candidates(const RandomCase& one) {
  std::vector<std::string> edits = {"stay", "lanes:1", "lanes:2", "lanes:3", "optimizer", "dtype", "untied"};
  for (size_t i = one.steps.size(); i-- > 0;) edits.push_back(absl::StrCat("step:", i));
  for (size_t i = one.spec.model.layers.size(); i-- > 0;) edits.push_back(absl::StrCat("layer:", i));
  for (size_t i = 0; i < one.steps.size(); ++i) {
    for (size_t j = one.steps[i].contributions.size(); j-- > 0;) {
      const RandomContribution& part = one.steps[i].contributions[j];
      const std::string at = absl::StrCat(i, ".", j);
      edits.push_back("part:" + at);
      edits.push_back("calm:" + at);
      for (int64_t rows : {int64_t{1}, part.rows / 2, part.rows - 1}) {
        edits.push_back(absl::StrCat("rows:", at, ".", rows));
      }
      for (int split : {1, part.micro_batches / 2, part.micro_batches - 1}) {
        edits.push_back(absl::StrCat("split:", at, ".", split));
      }
    }
    edits.push_back(absl::StrCat("common:", i));
  }
  AddWidths(one.spec.model.layers, edits);
  return edits;
}

}  // namespace

bool ApplyEdits(std::string_view edits, RandomCase& one) {
  for (absl::string_view edit : absl::StrSplit(absl::string_view(edits.data(), edits.size()), ' ', absl::SkipEmpty())) {
    if (!ApplyEdit(edit, one)) return false;
  }
  return true;
}

ShrunkCase Shrink(const RandomCase& whole, const std::function<bool(const RandomCase&)>& fails, int max_tries) {
  ShrunkCase shrunk{whole, ""};
  int tries = 0;
  for (bool smaller = true; smaller;) {
    smaller = false;
    // After an edit the candidates are others; those before it have been tried on a larger case, and wait for the next
    // round.
    std::vector<std::string> candidates = Candidates(shrunk.one);
    for (size_t i = 0; i < candidates.size();) {
      RandomCase next = shrunk.one;
      if (!ApplyEdits(candidates[i], next)) {
        ++i;
        continue;
      }
      if (++tries > max_tries) return shrunk;
      if (!fails(next)) {
        ++i;
        continue;
      }
      shrunk.one = std::move(next);
      absl::StrAppend(&shrunk.edits, shrunk.edits.empty() ? "" : " ", candidates[i]);
      candidates = Candidates(shrunk.one);
      smaller = true;
    }
  }
  return shrunk;
}

}  // namespace penstock::testing
