#include "engine/program/program_modules.h"

#include <map>
#include <set>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace penstock {
namespace {

constexpr char kSequential[] = "torch.nn.modules.container.Sequential";

// blocks.3 without its number, or nothing: blocks.
std::string WithoutNumber(const std::string& name) {
  size_t digits = name.size();
  while (digits > 0 && absl::ascii_isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
  const bool numbered = digits < name.size() && (digits == 0 || name[digits - 1] == '.' || name[digits - 1] == '_');
  return numbered ? name.substr(0, digits) + "#" : "";
}

// Modules to look into: those above repeated blocks.
std::set<std::string> OpenModules(const ProgramGraph& graph) {
  std::map<std::tuple<std::string, std::string, std::string>, std::set<std::string>> alike;  // by parent, name, type
  std::map<std::string, std::string> parents;
  std::set<std::string> inner;  // modules that hold others
  for (const ProgramNode& node : graph.nodes) {
    for (size_t m = 1; m < node.modules.size(); ++m) {
      const ProgramModule& module = node.modules[m];
      const std::string& parent = node.modules[m - 1].name;
      parents[module.name] = parent;
      inner.insert(parent);
      const std::string stem = WithoutNumber(module.name);
      if (!stem.empty()) alike[{parent, stem, module.type}].insert(module.name);
    }
  }
  std::set<std::string> open = {""};
  for (const auto& [key, names] : alike) {
    if (names.size() < 2 || inner.count(*names.begin()) == 0) continue;
    for (std::string above = std::get<0>(key); open.insert(above).second && parents.count(above) != 0;) {
      above = parents.at(above);
    }
  }
  return open;
}

// The first module around a node that is neither open nor a sequence; nothing for what lies between modules.
std::string UnitOf(const ProgramNode& node, const std::set<std::string>& open) {
  for (const ProgramModule& module : node.modules) {
    if (open.count(module.name) == 0 && module.type != kSequential) return module.name;
  }
  return "";
}

}  // namespace

std::vector<ModuleBoundary> ModuleBoundaries(const ProgramGraph& graph) {
  const std::set<std::string> open = OpenModules(graph);
  std::vector<ModuleBoundary> boundaries;
  std::map<std::string, int> times;
  std::string before;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const std::string unit = UnitOf(graph.nodes[n], open);
    if (unit.empty() || unit == before) continue;
    const std::string key = absl::StrCat(unit, "#", times[unit]++);
    if (!before.empty()) boundaries.push_back({.node = static_cast<int>(n), .key = key, .module = unit});
    before = unit;
  }
  return boundaries;
}

std::string FirstModule(const ProgramGraph& graph) {
  const std::set<std::string> open = OpenModules(graph);
  for (const ProgramNode& node : graph.nodes) {
    if (const std::string unit = UnitOf(node, open); !unit.empty()) return unit;
  }
  return "model";
}

std::vector<ModuleBoundary> NodeBoundaries(const ProgramGraph& graph) {
  std::vector<ModuleBoundary> boundaries;
  for (size_t n = 1; n < graph.nodes.size(); ++n) {
    boundaries.push_back({.node = static_cast<int>(n), .key = graph.nodes[n].name, .module = graph.nodes[n].name});
  }
  return boundaries;
}

}  // namespace penstock
