#include "engine/program/program_parts.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"

namespace penstock {
namespace {

// Where a number is made and used: calls, -1 before all of them, and behind all of them for what the graph gives.
struct Lifetime {
  int made = -1;
  std::vector<int> uses = {};
};

std::vector<Lifetime> Lifetimes(const ResolvedGraph& graph) {
  std::vector<Lifetime> lifetimes(graph.graph->values.size());
  const auto calls = static_cast<int>(graph.calls.size());
  for (int c = 0; c < calls; ++c) {
    if (graph.CountsBatches(c)) continue;
    for (const ProgramValueIndex value : graph.calls[c].inputs()) lifetimes[value].uses.push_back(c);
    for (const ProgramValueIndex value : graph.calls[c].outputs()) {
      if (value != graph.calls[c].changes()) lifetimes[value].made = c;
    }
  }
  for (const ProgramOutput& output : graph.graph->outputs) {
    if (output.item.is_value()) lifetimes[graph.numbers[output.item.value]].uses.push_back(calls);
  }
  return lifetimes;
}

bool IsState(const ResolvedGraph& graph, ProgramValueIndex of_class) {
  for (const auto& [value, tensor] : graph.graph->tensors) {
    if (graph.classes[value] == of_class && graph.program->tensors[tensor].kind != ProgramTensor::Kind::kParameter) {
      return true;
    }
  }
  return false;
}

// The ways of values: the parts that make or use each. Each part hands it to the next one on the way.
using Ways = std::map<ProgramValueIndex, std::set<int>>;

// By call, and for what the graph gives.
std::vector<int> PartOfEachCall(const std::vector<GraphPart>& parts) {
  std::vector<int> part_of;
  for (size_t p = 0; p < parts.size(); ++p) part_of.resize(parts[p].end, static_cast<int>(p));
  part_of.push_back(static_cast<int>(parts.size()) - 1);
  return part_of;
}

Ways WaysThroughParts(const ResolvedGraph& graph, const std::vector<int>& part_of, const std::map<int, int>& owners) {
  Ways ways;
  const std::vector<Lifetime> lifetimes = Lifetimes(graph);
  for (const ProgramInput& input : graph.graph->inputs) ways[input.value] = {0};
  for (size_t v = 0; v < lifetimes.size(); ++v) {
    const auto value = static_cast<ProgramValueIndex>(v);
    const int tensor = graph.TensorOf(value);
    if (lifetimes[v].uses.empty() || graph.graph->constants.count(value) != 0) continue;
    std::set<int> way;
    if (tensor >= 0) {
      const auto owner = owners.find(tensor);
      if (owner == owners.end()) continue;  // each part has its own
      way.insert(owner->second);
    } else {
      way.insert(lifetimes[v].made < 0 ? 0 : part_of[lifetimes[v].made]);
    }
    for (const int use : lifetimes[v].uses) way.insert(part_of[use]);
    if (way.size() > 1) ways[value] = std::move(way);
  }
  return ways;
}

// By value: not a number that stands for a size.
std::vector<bool> AreTensors(const ResolvedGraph& graph) {
  std::vector<bool> are(graph.graph->values.size(), true);
  for (const OperatorCall& call : graph.calls) {
    if (call.kind() != OperatorKind::kSymbol) continue;
    for (const ProgramValueIndex value : call.outputs()) are[value] = false;
  }
  return are;
}

// A tensor must go from each part to the next. Where none does, the one that was made last and is needed later takes the
// way through both.
void BridgeGaps(const ResolvedGraph& graph, int parts, const std::vector<bool>& tensors, Ways& ways) {
  std::vector<bool> bridged(parts, false);
  std::vector<std::vector<ProgramValueIndex>> come(parts);  // by the part where the way begins
  for (const auto& [value, way] : ways) {
    if (!tensors[value]) continue;
    for (const int part : way) bridged[part] = bridged[part] || way.count(part + 1) != 0;
    come[*way.begin()].push_back(value);
  }
  std::set<ProgramValueIndex> under_way;
  for (int p = 0; p + 1 < parts; ++p) {
    under_way.insert(come[p].begin(), come[p].end());
    while (!under_way.empty() && *ways[*under_way.rbegin()].rbegin() <= p) under_way.erase(*under_way.rbegin());
    if (bridged[p]) continue;
    ProgramValueIndex bridge = graph.graph->inputs.empty() ? kNoValue : graph.graph->inputs[0].value;
    if (!under_way.empty()) bridge = *under_way.rbegin();
    if (bridge == kNoValue) continue;
    std::set<int>& way = ways[bridge];
    way.insert({p, p + 1});
    bridged[p + 1] = bridged[p + 1] || way.count(p + 2) != 0;
  }
}

// Positions of inputs that the first part does not use, and of outputs that the last one only gives, once, by their
// values. A value that is changed in place is none of them: it is not the same everywhere.
struct Handed {
  std::map<ProgramValueIndex, int> inputs;
  std::map<ProgramValueIndex, int> outputs;
};

Handed FindHanded(const ResolvedGraph& graph, const std::vector<int>& part_of) {
  Handed handed;
  const std::vector<Lifetime> lifetimes = Lifetimes(graph);
  const int behind = static_cast<int>(graph.calls.size());
  // Sizes are known without the elements.
  const auto used_in = [&](ProgramValueIndex value, int part) {
    const std::vector<int>& uses = lifetimes[value].uses;
    return std::any_of(uses.begin(), uses.end(), [&](int use) {
      const bool size_only = part == 0 && use != behind && graph.calls[use].kind() == OperatorKind::kSymbol;
      return use != behind && part_of[use] == part && !size_only;
    });
  };
  const auto stays_as_it_is = [&](ProgramValueIndex value) {
    return graph.changes.count(graph.classes[value]) == 0 && graph.TensorOf(value) < 0;
  };
  const int last = part_of.back();
  if (last == 0) return handed;
  const std::vector<ProgramInput>& inputs = graph.graph->inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ProgramValueIndex value = inputs[i].value;
    if (!used_in(value, 0) && stays_as_it_is(value)) handed.inputs[value] = static_cast<int>(i);
  }
  // One is left to the first part, which knows its device by it.
  if (!inputs.empty() && handed.inputs.size() == inputs.size()) handed.inputs.erase(inputs[0].value);
  const std::vector<ProgramOutput>& outputs = graph.graph->outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].item.is_value()) continue;
    const ProgramValueIndex value = graph.numbers[outputs[i].item.value];
    const std::vector<int>& uses = lifetimes[value].uses;
    const bool once = std::count(uses.begin(), uses.end(), behind) == 1;
    if (once && !used_in(value, last) && stays_as_it_is(value)) handed.outputs[value] = static_cast<int>(i);
  }
  return handed;
}

// What each part gives and takes, as the ways say. A value that the first part or the last one only hands on is a skip
// even between neighbours, unless no other tensor would go from one to the other.
void AddHandOvers(const ResolvedGraph& graph, const Ways& ways, const Handed& handed, const std::vector<bool>& tensors,
                  std::vector<GraphPart>& parts) {
  const int last = static_cast<int>(parts.size()) - 1;
  const auto comes_in = [&](ProgramValueIndex value, int from) { return from == 0 && handed.inputs.count(value) != 0; };
  const auto goes_out = [&](ProgramValueIndex value, int to) { return to == last && handed.outputs.count(value) != 0; };
  std::vector<bool> bridged(parts.size(), false);
  for (const auto& [value, way] : ways) {
    for (const int part : way) {
      const bool by_hand = comes_in(value, part) || goes_out(value, part + 1);
      if (way.count(part + 1) != 0 && !by_hand && tensors[value]) bridged[part] = true;
    }
  }
  for (const auto& [value, way] : ways) {
    for (auto at = way.begin(); std::next(at) != way.end(); ++at) {
      const int from = *at;
      const int to = *std::next(at);
      const bool in = comes_in(value, from);
      const bool out = !in && goes_out(value, to);
      if (to == from + 1 && !((in || out) && bridged[from])) {
        parts[from].leaves.push_back(value);
        parts[to].arrivals.push_back(value);
        bridged[from] = bridged[from] || tensors[value];
        continue;
      }
      const std::string name = absl::StrCat(graph.graph->values[value], "@", from, "-", to);
      parts[from].stashes.emplace_back(name, value);
      parts[to].pops.emplace_back(name, value);
      if (in) parts[0].handed_inputs.emplace_back(name, handed.inputs.at(value));
      if (!out) continue;
      parts[last].handed_outputs.emplace_back(name, handed.outputs.at(value));
      parts[from].given.emplace_back(name, handed.outputs.at(value));
    }
  }
  parts[0].arrivals.clear();
  for (const ProgramInput& input : graph.graph->inputs) parts[0].arrivals.push_back(input.value);
}

// Which of the values that reach a part are changed in place there.
void FindCopied(const ResolvedGraph& graph, GraphPart& part) {
  std::set<ProgramValueIndex> changed;
  for (int c = part.first; c < part.end; ++c) {
    const ProgramValueIndex value = graph.calls[c].changes();
    if (value != kNoValue) changed.insert(graph.classes[value]);
  }
  const auto copy = [&](ProgramValueIndex value) {
    if (changed.count(graph.classes[value]) != 0) part.copied.push_back(value);
  };
  for (const ProgramValueIndex value : part.arrivals) copy(value);
  for (const auto& [name, value] : part.pops) copy(value);
}

}  // namespace

std::vector<bool> ForbiddenCuts(const ResolvedGraph& graph) {
  const auto calls = static_cast<int>(graph.calls.size());
  std::vector<bool> forbidden(static_cast<size_t>(calls) + 1, false);
  const std::vector<Lifetime> lifetimes = Lifetimes(graph);
  const auto forbid = [&](int first, int last) {
    for (int c = first + 1; c <= last; ++c) forbidden[c] = true;
  };
  std::map<ProgramValueIndex, std::vector<ProgramValueIndex>> members;
  for (size_t v = 0; v < lifetimes.size(); ++v) {
    const auto value = static_cast<ProgramValueIndex>(v);
    if (graph.numbers[v] == value && graph.changes.count(graph.classes[v]) != 0) {
      members[graph.classes[v]].push_back(value);
    }
  }
  for (const auto& [of_class, values] : members) {
    const int last_change = graph.changes.at(of_class).back();
    if (IsState(graph, of_class)) {
      int first = last_change;
      for (const ProgramValueIndex value : values) {
        for (const int use : lifetimes[value].uses) first = std::min(first, use);
      }
      forbid(first, last_change);
      continue;
    }
    std::map<int, int> born;  // by cut: members that live from it on, less those that have died
    for (const ProgramValueIndex value : values) {
      const Lifetime& life = lifetimes[value];
      if (life.uses.empty() || life.uses.back() <= life.made || graph.TensorOf(value) >= 0) continue;
      ++born[life.made + 1];
      --born[life.uses.back() + 1];
    }
    int live = 0;
    for (auto at = born.begin(); at != born.end(); ++at) {
      live += at->second;
      if (live > 1) forbid(std::max(at->first, 1) - 1, std::min(last_change, std::next(at)->first - 1));
    }
  }
  // A batch norm that is called twice has one set of statistics.
  std::map<ProgramValueIndex, std::pair<int, int>> statistics;
  for (int c = 0; c < calls; ++c) {
    if (graph.calls[c].kind() != OperatorKind::kBatchNorm) continue;
    const OperatorCall::BatchNormArguments arguments = graph.calls[c].batch_norm_arguments();
    for (const ProgramValueIndex value : {arguments.running_mean, arguments.running_var}) {
      if (value == kNoValue || lifetimes[value].uses.empty()) continue;
      forbid(lifetimes[value].uses.front(), std::min(lifetimes[value].uses.back(), calls - 1));
    }
  }
  return forbidden;
}

std::vector<int> TensorsUsed(const ResolvedGraph& graph, int first, int end) {
  std::set<int> tensors;
  const auto use = [&](ProgramValueIndex value) {
    if (graph.TensorOf(value) >= 0) tensors.insert(graph.TensorOf(value));
  };
  for (int c = first; c < end; ++c) {
    if (graph.CountsBatches(c)) continue;
    for (const ProgramValueIndex value : graph.calls[c].inputs()) use(value);
    if (graph.calls[c].kind() != OperatorKind::kBatchNorm) continue;
    const ProgramValueIndex mean = graph.calls[c].batch_norm_arguments().running_mean;
    const int counter =
        mean == kNoValue || graph.TensorOf(mean) < 0 ? -1 : CounterBeside(*graph.program, graph.TensorOf(mean));
    if (counter >= 0) tensors.insert(counter);
  }
  if (end == static_cast<int>(graph.calls.size())) {
    for (const ProgramOutput& output : graph.graph->outputs) {
      if (output.item.is_value()) use(graph.numbers[output.item.value]);
    }
  }
  return {tensors.begin(), tensors.end()};
}

std::vector<GraphPart> CutGraph(const ResolvedGraph& graph, const std::vector<int>& cuts,
                                const std::map<int, int>& owners) {
  std::vector<GraphPart> parts(cuts.size() + 1);
  for (size_t p = 0; p < parts.size(); ++p) {
    parts[p].first = p == 0 ? 0 : cuts[p - 1];
    parts[p].end = p == cuts.size() ? static_cast<int>(graph.calls.size()) : cuts[p];
    PENSTOCK_CHECK(parts[p].first <= parts[p].end);
    parts[p].tensors = TensorsUsed(graph, parts[p].first, parts[p].end);
  }
  const std::vector<int> part_of = PartOfEachCall(parts);
  Ways ways = WaysThroughParts(graph, part_of, owners);
  const std::vector<bool> tensors = AreTensors(graph);
  BridgeGaps(graph, static_cast<int>(parts.size()), tensors, ways);
  AddHandOvers(graph, ways, FindHanded(graph, part_of), tensors, parts);
  for (GraphPart& part : parts) FindCopied(graph, part);
  return parts;
}

}  // namespace penstock
