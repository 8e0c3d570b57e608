#include "engine/program/program_nodes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace penstock {

using nlohmann::json;

namespace {

constexpr char kSetGradients[] = "torch.ops.higher_order.wrap_with_set_grad_enabled";
constexpr char kSetAutocast[] = "torch.ops.higher_order.wrap_with_autocast";
constexpr char kNoModule[] = "_empty_nn_module_stack_from_metadata_hook";

}  // namespace

void ProgramNodes::CheckGraph(const json& graph) {
  fields_.Object(graph, {"inputs", "outputs", "nodes", "tensor_values", "sym_int_values", "sym_bool_values"},
                 {"is_single_tensor_return", "custom_obj_values", "sym_float_values"});
  if (!fields_.ok() || fields_.At(graph, "custom_obj_values").is_null()) return;
  const json& objects = fields_.Map(graph, "custom_obj_values");
  if (fields_.ok() && !objects.empty()) fields_.Fail("must not use custom objects", objects.begin().key());
}

void ProgramNodes::Define(ProgramScope& scope, const std::string& name, ProgramItem item) {
  if (name.empty()) return fields_.Fail("a value must have a name", "none");
  if (!scope.emplace(name, std::move(item)).second) fields_.Fail("a value must be made once", name);
}
ProgramValueIndex ProgramNodes::Make(ProgramScope& scope, const std::string& name) {
  const auto value = static_cast<ProgramValueIndex>(graph_.values.size());
  graph_.values.push_back(name);
  Define(scope, name, {.value = value});
  return value;
}

void ProgramNodes::ReadNodes(const json& graph, ProgramScope& scope, Surroundings around) {
  const json& nodes = fields_.List(graph, "nodes");
  for (size_t i = 0; i < nodes.size() && fields_.ok(); ++i) {
    const json& node = nodes[i];
    fields_.Object(node, {"target", "inputs", "outputs", "metadata"}, {"is_hop_single_tensor_return", "name"});
    if (!fields_.ok()) return;
    const std::string target = fields_.Text(fields_.At(node, "target"));
    const json& name = fields_.At(node, "name");
    const std::string called = name.is_null() ? absl::StrCat(target, "[", i, "]") : fields_.Text(name);
    fields_.Enter(absl::StrCat("node ", called));
    if (target == kSetGradients || target == kSetAutocast) {
      Unfold(node, target, scope, around);
    } else if (absl::StartsWith(target, "torch.ops.higher_order.")) {
      fields_.Fail("higher-order operator is not supported", target);
    } else {
      ReadNode(node, target, called, scope, around);
    }
  }
}

void ProgramNodes::ReadNode(const json& node, const std::string& target, const std::string& name, ProgramScope& scope,
                            Surroundings around) {
  if (graph_.nodes.size() >= static_cast<size_t>(limits_.nodes)) {
    return fields_.Fail(absl::StrCat("must have at most ", limits_.nodes, " nodes"), "more");
  }
  ProgramNode read{.name = name, .target = target, .arguments = {}, .outputs = {}, .modules = {}};
  read.gradients = around.gradients;
  read.autocast = around.autocast;
  for (const json& input : fields_.List(node, "inputs", limits_.items)) {
    fields_.Object(input, {"name", "arg"}, {"kind"});
    const json* value = nullptr;
    const std::string kind = fields_.Union(fields_.At(input, "arg"), value);
    read.arguments.push_back(arguments_.Argument(scope, kind, *value));
    read.arguments.back().name = fields_.Text(fields_.At(input, "name"));
  }
  const json& outputs = fields_.List(node, "outputs", limits_.items);
  for (const json& output : outputs) {
    const json* value = nullptr;
    const std::string kind = fields_.Union(output, value);
    if (kind == "as_tensors" && outputs.size() == 1 && value->is_array()) {
      if (value->size() > static_cast<uint64_t>(limits_.items)) {
        return fields_.Fail(absl::StrCat("must give at most ", limits_.items, " results"), absl::StrCat(value->size()));
      }
      read.outputs_are_list = true;
      for (const json& item : *value) read.outputs.push_back(Make(scope, fields_.Text(fields_.At(item, "name"))));
    } else if (kind == "as_tensor") {
      read.outputs.push_back(Make(scope, fields_.Text(fields_.At(*value, "name"))));
    } else if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
      read.outputs.push_back(Make(scope, fields_.Text(fields_.At(*value, "as_name"))));
    } else if (kind == "as_none") {
      read.outputs.push_back(kNoValue);
    } else {
      fields_.Fail("gives a result of a kind that is not supported", kind);
    }
  }
  read.modules = Modules(fields_.Map(node, "metadata"));
  graph_.nodes.push_back(std::move(read));
}

std::vector<ProgramModule> ProgramNodes::Modules(const json& metadata) {
  std::vector<ProgramModule> modules;
  const json& stack = fields_.At(metadata, "nn_module_stack");
  if (stack.is_null()) return modules;
  const std::string text = fields_.Text(stack);
  for (const absl::string_view entry : absl::StrSplit(text, ';')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, absl::MaxSplits(',', 2));
    if (parts.size() != 3 || parts[0] == kNoModule) continue;
    modules.push_back({std::string(parts[1]), std::string(parts[2])});
  }
  return modules;
}

void ProgramNodes::Unfold(const json& node, const std::string& target, ProgramScope& scope, Surroundings around) {
  const json& inputs = fields_.List(node, "inputs", limits_.items);
  std::vector<std::pair<std::string, const json*>> arguments;
  for (const json& input : inputs) {
    const json* value = nullptr;
    std::string kind = fields_.Union(fields_.At(input, "arg"), value);
    arguments.emplace_back(std::move(kind), value);
  }
  const bool autocast = target == kSetAutocast;
  const size_t position = autocast ? 4 : 1;  // of the graph
  if (arguments.size() <= position || arguments[position].first != "as_graph") {
    return fields_.Fail("must have a graph as its argument", target);
  }
  const auto& [switch_kind, enabled] = arguments[autocast ? 2 : 0];
  if (switch_kind != "as_bool") return fields_.Fail("must be told on or off", switch_kind);
  if (autocast) {
    if (fields_.Bool(*enabled)) return fields_.Fail("must not turn autocast on: the pipeline's setting does", target);
    around.autocast = false;
  } else {
    around.gradients = fields_.Bool(*enabled);
  }
  fields_.Object(*arguments[position].second, {"name", "graph"});
  const json& graph = fields_.At(*arguments[position].second, "graph");
  CheckGraph(graph);
  const json& names = fields_.List(graph, "inputs");
  if (!fields_.ok()) return;
  if (names.size() != arguments.size() - position - 1) {
    return fields_.Fail("must give its graph as many arguments as it takes", absl::StrCat(names.size()));
  }
  ProgramScope inner;
  for (size_t i = 0; i < names.size() && fields_.ok(); ++i) {
    const auto& [kind, value] = arguments[position + 1 + i];
    const ProgramArgument argument = arguments_.Argument(scope, kind, *value);
    const json* name = nullptr;
    const std::string name_kind = fields_.Union(names[i], name);
    if (argument.kind != ProgramArgument::Kind::kItem) return fields_.Fail("takes single values only", kind);
    Define(inner, fields_.Text(fields_.At(*name, name_kind == "as_tensor" ? "name" : "as_name")), argument.items[0]);
  }
  ReadNodes(graph, inner, around);
  BindResults(node, graph, inner, scope);
}

void ProgramNodes::BindResults(const json& node, const json& graph, const ProgramScope& inner, ProgramScope& scope) {
  std::vector<ProgramItem> results;
  for (const json& output : fields_.List(graph, "outputs")) {
    const json* value = nullptr;
    const std::string kind = fields_.Union(output, value);
    const ProgramArgument argument = arguments_.Argument(inner, kind, *value);
    results.insert(results.end(), argument.items.begin(), argument.items.end());
  }
  size_t next = 0;
  const auto bind = [&](const json& name) {
    if (next == results.size()) return fields_.Fail("must give as many results as its graph", "more");
    Define(scope, fields_.Text(name), results[next++]);
  };
  for (const json& output : fields_.List(node, "outputs")) {
    const json* value = nullptr;
    const std::string kind = fields_.Union(output, value);
    if (kind == "as_tensors" && value->is_array()) {
      for (const json& item : *value) bind(fields_.At(item, "name"));
    } else if (kind == "as_none") {
      next = std::min(next + 1, results.size());
    } else {
      bind(fields_.At(*value, kind == "as_tensor" ? "name" : "as_name"));
    }
  }
}

}  // namespace penstock
