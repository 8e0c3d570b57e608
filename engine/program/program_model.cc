#include "engine/program/program_model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/program/graph_layer.h"
#include "engine/program/program_archive.h"
#include "engine/program/program_modules.h"
#include "engine/program/program_parts.h"

namespace penstock {
namespace {

constexpr size_t kMaxLayerNameBytes = 48;

// Where the graphs of all modes are cut: equally many places in each.
struct Cuts {
  std::vector<std::string> modules;      // of each part
  std::vector<std::vector<int>> places;  // by mode
};

std::vector<ModuleBoundary> BoundariesOf(const ProgramGraph& graph, ProgramCuts cuts) {
  return cuts == ProgramCuts::kModules ? ModuleBoundaries(graph) : NodeBoundaries(graph);
}

// Boundaries that every graph has, in the same order, and that none forbids.
Cuts FindCuts(const std::vector<ResolvedGraph>& graphs, ProgramCuts wanted) {
  Cuts cuts{.modules = {FirstModule(*graphs[0].graph)}, .places = std::vector<std::vector<int>>(graphs.size())};
  std::vector<std::map<std::string, int>> by_key(graphs.size());
  std::vector<std::vector<bool>> forbidden;
  for (size_t g = 0; g < graphs.size(); ++g) {
    forbidden.push_back(ForbiddenCuts(graphs[g]));
    for (const ModuleBoundary& boundary : BoundariesOf(*graphs[g].graph, wanted)) {
      by_key[g][boundary.key] = boundary.node;
    }
  }
  for (const ModuleBoundary& boundary : BoundariesOf(*graphs[0].graph, wanted)) {
    std::vector<int> nodes;
    bool fits = true;
    for (size_t g = 0; g < graphs.size() && fits; ++g) {
      const auto found = by_key[g].find(boundary.key);
      fits = found != by_key[g].end() && !forbidden[g][found->second] &&
             (cuts.places[g].empty() || cuts.places[g].back() < found->second);
      if (fits) nodes.push_back(found->second);
    }
    if (!fits) continue;
    cuts.modules.push_back(boundary.module);
    for (size_t g = 0; g < graphs.size(); ++g) cuts.places[g].push_back(nodes[g]);
  }
  return cuts;
}

// Letters, digits and _: layer1.0 becomes layer1_0; what comes twice gets a number.
std::string LayerName(const std::string& module, std::map<std::string, int>& taken) {
  std::string name = module;
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  if (name.size() > kMaxLayerNameBytes) name = name.substr(name.size() - kMaxLayerNameBytes);
  std::string unique = name;
  for (int& times = taken[name]; times > 0 && taken.count(unique) != 0;) unique = absl::StrCat(name, "_", ++times);
  taken[unique] = 1;
  return unique;
}

// Which parts use a tensor, in any mode.
std::map<int, std::set<int>> PartsByTensor(const std::vector<ResolvedGraph>& graphs, const Cuts& cuts) {
  std::map<int, std::set<int>> parts;
  for (size_t g = 0; g < graphs.size(); ++g) {
    for (size_t p = 0; p <= cuts.places[g].size(); ++p) {
      const int first = p == 0 ? 0 : cuts.places[g][p - 1];
      const int end = p == cuts.places[g].size() ? static_cast<int>(graphs[g].calls.size()) : cuts.places[g][p];
      for (const int tensor : TensorsUsed(graphs[g], first, end)) parts[tensor].insert(static_cast<int>(p));
    }
  }
  return parts;
}

// Who holds what: by part, tensors in the order of the model.
struct Holders {
  std::vector<std::vector<int>> parameters;
  std::vector<std::vector<int>> buffers;
  std::map<int, int> owners;  // of buffers that go from part to part
};

// The tensors as the model registers them: as its graphs take them, then those that no graph takes.
std::vector<int> ModelOrder(const ExportedProgram& program, const std::vector<ResolvedGraph>& graphs) {
  std::vector<int> order;
  std::set<int> seen;
  const auto add = [&](int tensor) {
    if (program.tensors[tensor].same_as < 0 && seen.insert(tensor).second) order.push_back(tensor);
  };
  for (const ResolvedGraph& graph : graphs) {
    for (const auto& [value, tensor] : graph.graph->tensors) add(tensor);
  }
  for (size_t t = 0; t < program.tensors.size(); ++t) add(static_cast<int>(t));
  return order;
}

// Tensors that change in some mode: buffers and statistics.
std::set<int> ChangedTensors(const std::vector<ResolvedGraph>& graphs) {
  std::set<int> changed;
  for (const ResolvedGraph& graph : graphs) {
    for (const auto& [value, tensor] : graph.graph->tensors) {
      if (graph.changes.count(graph.classes[value]) != 0) changed.insert(tensor);
    }
    for (const OperatorCall& call : graph.calls) {
      if (call.kind() != OperatorKind::kBatchNorm) continue;
      const OperatorCall::BatchNormArguments arguments = call.batch_norm_arguments();
      for (const ProgramValueIndex value : {arguments.running_mean, arguments.running_var}) {
        if (value != kNoValue && graph.TensorOf(value) >= 0) changed.insert(graph.TensorOf(value));
      }
    }
  }
  return changed;
}

// A tensor that changes belongs to one part, in whatever mode it is used: takes out the cuts between its uses.
void JoinUsesOfChanged(const std::vector<ResolvedGraph>& graphs, Cuts& cuts) {
  const std::map<int, std::set<int>> parts = PartsByTensor(graphs, cuts);
  std::vector<bool> stays(cuts.places[0].size(), true);
  for (const int tensor : ChangedTensors(graphs)) {
    const auto used = parts.find(tensor);
    if (used == parts.end()) continue;
    for (int cut = *used->second.begin(); cut < *used->second.rbegin(); ++cut) stays[cut] = false;
  }
  Cuts kept{.modules = {cuts.modules[0]}, .places = std::vector<std::vector<int>>(graphs.size())};
  for (size_t cut = 0; cut < stays.size(); ++cut) {
    if (!stays[cut]) continue;
    kept.modules.push_back(cuts.modules[cut + 1]);
    for (size_t g = 0; g < graphs.size(); ++g) kept.places[g].push_back(cuts.places[g][cut]);
  }
  cuts = std::move(kept);
}

Holders FindHolders(const ExportedProgram& program, const std::vector<ResolvedGraph>& graphs,
                    const std::map<int, std::set<int>>& parts, size_t count) {
  Holders holders{std::vector<std::vector<int>>(count), std::vector<std::vector<int>>(count), {}};
  for (const int tensor : ModelOrder(program, graphs)) {
    const auto used = parts.find(tensor);
    const std::set<int> by = used == parts.end() ? std::set<int>{} : used->second;
    if (program.tensors[tensor].kind == ProgramTensor::Kind::kParameter && !by.empty()) {
      for (const int part : by) holders.parameters[part].push_back(tensor);
      continue;
    }
    if (program.tensors[tensor].kind == ProgramTensor::Kind::kConstant) continue;
    holders.buffers[by.empty() ? 0 : *by.begin()].push_back(tensor);
    if (by.size() > 1) holders.owners[tensor] = *by.begin();
  }
  return holders;
}

// Without a graph of its own for a mode, the literals of dropout and normalisation decide.
GraphLayerMode ModeOf(const std::vector<ResolvedGraph>& graphs, const std::vector<std::vector<GraphPart>>& parts,
                      size_t part, bool training) {
  const size_t graph = training && graphs.size() > 1 ? 1 : 0;
  GraphLayerMode mode{.graph = &graphs[graph], .part = &parts[graph][part]};
  if (graphs.size() == 1 && graphs[0].trains != training) mode.train_literals = training;
  return mode;
}

absl::Status CheckSameSignature(const ExportedProgram& program) {
  if (!program.training.has_value()) return absl::OkStatus();
  const auto describe = [](const ProgramGraph& graph) {
    std::string text;
    for (const ProgramInput& input : graph.inputs) absl::StrAppend(&text, input.name, "/", input.shape.size(), " ");
    for (const ProgramOutput& output : graph.outputs) absl::StrAppend(&text, output.name, " ");
    return text;
  };
  if (describe(program.graph) == describe(*program.training)) return absl::OkStatus();
  return ProgramError("graphs", "must take and give the same in both modes: " + describe(program.graph),
                      describe(*program.training));
}

}  // namespace

struct ProgramModel::Parts {
  std::shared_ptr<const ExportedProgram> program;
  std::vector<ResolvedGraph> graphs;
  std::vector<std::vector<GraphPart>> parts;  // by graph
  Holders holders;
  std::vector<std::string> names;
  std::vector<std::string> modules;
  std::map<int, int> first_uses;  // of parameters: the layer that has them under their own name
  std::vector<TieSpec> ties;

  std::string ParameterName(int layer, int tensor) const {
    const std::string& name = program->tensors[tensor].name;
    return first_uses.at(tensor) == layer ? name : absl::StrCat(name, "-", names[layer]);
  }
};

ProgramModel::ProgramModel(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ProgramModel::~ProgramModel() = default;

std::shared_ptr<const std::string> ProgramModel::file() const { return parts_->program->file; }

absl::StatusOr<std::shared_ptr<const ProgramModel>> ProgramModel::Create(ExportedProgram program, ProgramCuts cuts) {
  PENSTOCK_RETURN_IF_ERROR(CheckSameSignature(program));
  auto made = std::make_unique<Parts>();
  made->program = std::make_shared<const ExportedProgram>(std::move(program));
  PENSTOCK_ASSIGN_OR_RETURN(made->graphs.emplace_back(), ResolveGraph(*made->program, made->program->graph));
  if (made->program->training.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(made->graphs.emplace_back(), ResolveGraph(*made->program, *made->program->training));
  }
  Cuts found = FindCuts(made->graphs, cuts);
  JoinUsesOfChanged(made->graphs, found);
  const size_t count = found.modules.size();
  made->holders = FindHolders(*made->program, made->graphs, PartsByTensor(made->graphs, found), count);
  for (size_t g = 0; g < made->graphs.size(); ++g) {
    made->parts.push_back(CutGraph(made->graphs[g], found.places[g], made->holders.owners));
  }
  std::map<std::string, int> taken;
  std::map<int, TieSpec> uses;
  for (size_t p = 0; p < count; ++p) {
    const auto layer = static_cast<int>(p);
    made->names.push_back(LayerName(found.modules[p], taken));
    for (const int tensor : made->holders.parameters[p]) {
      made->first_uses.emplace(tensor, layer);
      uses[tensor].parameters.push_back(made->ParameterName(layer, tensor));
    }
  }
  for (auto& [tensor, tie] : uses) {
    if (tie.parameters.size() > 1) made->ties.push_back(std::move(tie));
  }
  made->modules = found.modules;
  return std::shared_ptr<const ProgramModel>(new ProgramModel(std::move(made)));
}

int ProgramModel::size() const { return static_cast<int>(parts_->names.size()); }
const std::string& ProgramModel::name(int layer) const { return parts_->names.at(layer); }
const std::string& ProgramModel::module(int layer) const { return parts_->modules.at(layer); }
const std::vector<TieSpec>& ProgramModel::ties() const { return parts_->ties; }

absl::StatusOr<std::unique_ptr<Layer>> ProgramModel::Build(int layer, const SourceOptions& options) const {
  GraphLayerRequest request = {.program = parts_->program,
                               .evaluation = ModeOf(parts_->graphs, parts_->parts, layer, false),
                               .training = ModeOf(parts_->graphs, parts_->parts, layer, true),
                               .parameters = parts_->holders.parameters[layer],
                               .parameter_names = {},
                               .buffers = parts_->holders.buffers[layer],
                               .first = layer == 0,
                               .last = layer + 1 == size(),
                               .shapes_only = options.shapes_only,
                               .deferred_batch_norm = options.deferred_batch_norm};
  for (const int tensor : request.parameters) request.parameter_names.push_back(parts_->ParameterName(layer, tensor));
  absl::StatusOr<std::unique_ptr<GraphLayer>> made;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { made = GraphLayer::Create(request); }));
  if (!made.ok()) return std::move(made).status();
  return *std::move(made);
}

absl::StatusOr<std::vector<NamedLayer>> BuildProgramLayers(const ProgramModel& model, const SourceOptions& options) {
  std::vector<NamedLayer> layers;
  for (int i = 0; i < model.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, model.Build(i, options));
    layers.push_back({.name = model.name(i), .layer = std::move(layer)});
  }
  return layers;
}

}  // namespace penstock
