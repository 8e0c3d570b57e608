#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/model/exported_program_archive.h"
#include "engine/model/exported_program_json.h"

// Source of the format: torch/_export/serde/schema.py of PyTorch 2.11; in LibTorch, generated_serialization_types.h.

namespace penstock {
namespace {

using nlohmann::json;

constexpr int64_t kSchemaMajor = 8;
constexpr int64_t kNewestSchemaMinor = 17;
constexpr int64_t kOperatorSet = 10;
constexpr char kSetGradients[] = "torch.ops.higher_order.wrap_with_set_grad_enabled";
constexpr char kSetAutocast[] = "torch.ops.higher_order.wrap_with_autocast";
constexpr size_t kMostExpressionBytes = 1000;  // reading one calls itself
constexpr char kNoModule[] = "_empty_nn_module_stack_from_metadata_hook";

// The names that a graph sees, and what they stand for. A graph inside a graph has a scope of its own.
using Scope = std::map<std::string, ProgramItem>;

// What holds for the nodes of one graph inside another.
struct Surroundings {
  bool gradients = true;
  bool autocast = true;
};

class GraphReader {
 public:
  GraphReader(const std::vector<ProgramTensor>& tensors, const ProgramLimits& limits) : limits_(limits) {
    for (size_t i = 0; i < tensors.size(); ++i) by_name_[tensors[i].name] = static_cast<int>(i);
  }

  absl::StatusOr<ProgramGraph> Read(const json& document, const std::string& record) {
    fields_.Enter(record);
    ReadVersions(document);
    const json& module = fields_.At(document, "graph_module");
    fields_.Object(module, {"graph", "signature", "module_call_graph"}, {"metadata", "treespec_namedtuple_fields"});
    const json& graph = fields_.At(module, "graph");
    const json& signature = fields_.At(module, "signature");
    fields_.Object(signature, {"input_specs", "output_specs"});
    CheckGraph(graph);
    if (fields_.ok()) ReadRanges(fields_.Map(document, "range_constraints"));
    if (fields_.ok()) ReadInputs(graph, fields_.List(signature, "input_specs"));
    if (fields_.ok()) ReadNodes(graph, scope_, {});
    if (fields_.ok()) ReadOutputs(graph, fields_.List(signature, "output_specs"), module);
    if (!fields_.ok()) return fields_.status();
    return std::move(graph_);
  }

 private:
  void ReadVersions(const json& document) {
    fields_.Object(document, {"graph_module", "opset_version", "range_constraints", "schema_version"},
                   {"verifiers", "torch_version", "guards_code"});
    const json& version = fields_.At(document, "schema_version");
    fields_.Object(version, {"major", "minor"});
    const int64_t major = fields_.Int(fields_.At(version, "major"));
    const int64_t minor = fields_.Int(fields_.At(version, "minor"));
    if (major != kSchemaMajor || minor < 0 || minor > kNewestSchemaMinor) {
      fields_.Fail(absl::StrCat("schema_version must be ", kSchemaMajor, ".0 to ", kSchemaMajor, ".",
                                kNewestSchemaMinor, ", as PyTorch up to 2.11 writes it"),
                   absl::StrCat(major, ".", minor));
    }
    for (const auto& [name, number] : fields_.Map(document, "opset_version").items()) {
      if (name != "aten" || fields_.Int(number) != kOperatorSet) {
        fields_.Fail(absl::StrCat("opset_version must be aten ", kOperatorSet), absl::StrCat(name, " ", number.dump()));
      }
    }
  }

  // The fields of a graph. What it says of tensors between operators is not needed: running them tells.
  void CheckGraph(const json& graph) {
    fields_.Object(graph, {"inputs", "outputs", "nodes", "tensor_values", "sym_int_values", "sym_bool_values"},
                   {"is_single_tensor_return", "custom_obj_values", "sym_float_values"});
    if (fields_.ok() && !fields_.At(graph, "custom_obj_values").empty()) {
      fields_.Fail("must not use custom objects", fields_.At(graph, "custom_obj_values").begin().key());
    }
  }

  void ReadRanges(const json& ranges) {
    for (const auto& [symbol, range] : ranges.items()) {
      fields_.Enter(absl::StrCat("range_constraints[", symbol, "]"));
      fields_.Object(range, {"min_val", "max_val"});
      const auto bound = [&](const char* key, int64_t open) {
        const json& value = fields_.At(range, key);
        return value.is_null() ? open : fields_.Int(value);
      };
      graph_.symbols[symbol] = {bound("min_val", 0), bound("max_val", std::numeric_limits<int64_t>::max())};
    }
  }

  ProgramValueIndex AddValue(const std::string& name) {
    graph_.values.push_back(name);
    return static_cast<ProgramValueIndex>(graph_.values.size()) - 1;
  }

  // A new name of a scope, once.
  void Define(Scope& scope, const std::string& name, ProgramItem item) {
    if (name.empty()) return fields_.Fail("a value must have a name", "none");
    if (!scope.emplace(name, std::move(item)).second) fields_.Fail("a value must be made once", name);
  }
  ProgramValueIndex Make(Scope& scope, const std::string& name) {
    const ProgramValueIndex value = AddValue(name);
    Define(scope, name, {.value = value});
    return value;
  }

  ProgramItem Find(const Scope& scope, const json& name) {
    const std::string text = fields_.Text(name);
    const auto found = scope.find(text);
    if (found != scope.end()) return found->second;
    fields_.Fail("uses a value that no operator before it makes", text);
    return {};
  }

  // ----- inputs

  void ReadInputs(const json& graph, const json& specs) {
    fields_.Enter("signature");
    const json& inputs = fields_.List(graph, "inputs");
    if (inputs.size() != specs.size()) return fields_.Fail("must tell of each input", absl::StrCat(specs.size()));
    for (size_t i = 0; i < specs.size() && fields_.ok(); ++i) {
      fields_.Enter(absl::StrCat("input_specs[", i, "]"));
      const json* spec = nullptr;
      const std::string kind = fields_.Union(specs[i], spec);
      const json* input = nullptr;
      const std::string input_kind = fields_.Union(inputs[i], input);
      if (kind == "parameter") {
        fields_.Object(*spec, {"arg", "parameter_name"});
        ReadTensorInput(*spec, "parameter_name", *input);
      } else if (kind == "buffer") {
        fields_.Object(*spec, {"arg", "buffer_name", "persistent"});
        ReadTensorInput(*spec, "buffer_name", *input);
      } else if (kind == "tensor_constant") {
        fields_.Object(*spec, {"arg", "tensor_constant_name"});
        ReadTensorInput(*spec, "tensor_constant_name", *input);
      } else if (kind == "constant_input") {
        fields_.Object(*spec, {"name", "value"});
        const json* value = nullptr;
        const std::string value_kind = fields_.Union(fields_.At(*spec, "value"), value);
        const ProgramItem item = {.literal = Literal(value_kind, *value)};
        Define(scope_, fields_.Text(fields_.At(*spec, "name")), item);
      } else if (kind == "user_input" && input_kind == "as_tensor") {
        ReadUserInput(graph, *spec, *input);
      } else {
        fields_.Fail("is an input of a kind that is not supported", kind + " " + input_kind);
      }
    }
  }

  void ReadTensorInput(const json& spec, const char* name_key, const json& input) {
    const std::string name = fields_.Text(fields_.At(fields_.At(spec, "arg"), "name"));
    if (fields_.Text(fields_.At(input, "name")) != name) return fields_.Fail("must name the graph's input", name);
    const std::string tensor = fields_.Text(fields_.At(spec, name_key));
    const auto found = by_name_.find(tensor);
    if (found == by_name_.end()) return fields_.Fail("must name a tensor of the file", tensor);
    graph_.tensors[Make(scope_, name)] = found->second;
  }

  void ReadUserInput(const json& graph, const json& spec, const json& input) {
    const std::string name = fields_.Text(fields_.At(input, "name"));
    const json* argument = nullptr;
    fields_.Object(spec, {"arg"});
    if (fields_.Union(fields_.At(spec, "arg"), argument) != "as_tensor" || *argument != input) {
      return fields_.Fail("must name the graph's input", name);
    }
    const json& metas = fields_.Map(graph, "tensor_values");
    if (!metas.contains(name)) return fields_.Fail("must have a type and a shape", name);
    const json& meta = metas[name];
    fields_.Object(meta, {"dtype", "sizes", "requires_grad", "device", "strides", "storage_offset", "layout"});
    ProgramInput user{.name = name, .value = Make(scope_, name), .type = at::kFloat, .shape = {}};
    user.type = ProgramScalarType(fields_.At(meta, "dtype"), fields_);
    const json& sizes = fields_.List(meta, "sizes");
    if (sizes.size() > static_cast<size_t>(limits_.rank)) return fields_.Fail("must have fewer dimensions", name);
    for (const json& size : sizes) user.shape.push_back(ReadDimension(size));
    graph_.inputs.push_back(std::move(user));
  }

  ProgramDimension ReadDimension(const json& size) {
    const json* content = nullptr;
    if (fields_.Union(size, content) == "as_int") {
      const int64_t number = fields_.Int(*content);
      if (number < 0) fields_.Fail("must have sizes from 0", absl::StrCat(number));
      return {.symbol = "", .factor = 1, .addend = number, .example = number};
    }
    fields_.Object(*content, {"expr_str"}, {"hint"});
    const std::string expression = fields_.Text(fields_.At(*content, "expr_str"));
    if (expression.size() > kMostExpressionBytes) fields_.Fail("has too long a dimension", expression);
    if (!fields_.ok()) return {};
    std::string_view rest = expression;
    ProgramDimension dimension = ReadExpression(rest);
    if (!rest.empty()) fields_.Fail("has a dimension that is no sum or product of numbers and one symbol", expression);
    const json& hint = fields_.At(fields_.At(*content, "hint"), "as_int");
    dimension.example = hint.is_null() ? 1 : fields_.Int(hint);
    if (!dimension.symbol.empty() && graph_.symbols.count(dimension.symbol) == 0) {
      graph_.symbols[dimension.symbol] = {0, std::numeric_limits<int64_t>::max()};
    }
    return dimension;
  }

  static bool Take(std::string_view& rest, std::string_view token) {
    if (rest.substr(0, token.size()) != token) return false;
    rest.remove_prefix(token.size());
    return true;
  }

  // sympy's srepr: Symbol('s1', ...), Integer(2), Add(a, b), Mul(a, b). What is not of this form is left in `rest`.
  ProgramDimension ReadExpression(std::string_view& rest) {
    const std::string_view all = rest;
    const auto leave = [&] {
      rest = all;
      return ProgramDimension{};
    };
    if (Take(rest, "Symbol('")) {
      const size_t end = rest.find('\'');
      const size_t close = rest.find(')');
      if (end == std::string_view::npos || close == std::string_view::npos || close < end) return leave();
      ProgramDimension symbol{.symbol = std::string(rest.substr(0, end))};
      rest.remove_prefix(close + 1);
      return symbol;
    }
    if (Take(rest, "Integer(")) {
      const size_t close = rest.find(')');
      int64_t number = 0;
      if (close == std::string_view::npos || !ParseInt(rest.substr(0, close), number)) return leave();
      rest.remove_prefix(close + 1);
      return {.addend = number};
    }
    const bool product = rest.substr(0, 4) == "Mul(";
    if (!Take(rest, "Mul(") && !Take(rest, "Add(")) return leave();
    const std::string_view arguments = rest;
    const ProgramDimension left = ReadExpression(rest);
    if (rest == arguments || !Take(rest, ", ")) return leave();
    const std::string_view second = rest;
    const ProgramDimension right = ReadExpression(rest);
    if (rest == second || !Take(rest, ")")) return leave();
    if (!left.symbol.empty() && !right.symbol.empty()) return leave();
    const ProgramDimension& number = left.symbol.empty() ? left : right;
    ProgramDimension result = left.symbol.empty() ? right : left;
    const bool overflows = product ? __builtin_mul_overflow(result.factor, number.addend, &result.factor) ||
                                         __builtin_mul_overflow(result.addend, number.addend, &result.addend)
                                   : __builtin_add_overflow(result.addend, number.addend, &result.addend);
    return overflows ? leave() : result;
  }

  static bool ParseInt(std::string_view text, int64_t& number) {
    return absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number);
  }

  // ----- arguments

  c10::IValue Literal(const std::string& kind, const json& value) {
    if (kind == "as_none") return {};
    if (kind == "as_int") return fields_.Int(value);
    if (kind == "as_float") return fields_.Double(value);
    if (kind == "as_bool") return fields_.Bool(value);
    if (kind == "as_string") return fields_.Text(value);
    if (kind == "as_scalar_type") return static_cast<int64_t>(ProgramScalarType(value, fields_));
    if (kind == "as_layout") {
      if (fields_.Int(value) != 7) fields_.Fail("must use strided tensors", value.dump());
      return static_cast<int64_t>(c10::Layout::Strided);
    }
    if (kind == "as_memory_format") {
      static constexpr c10::MemoryFormat kFormats[] = {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast,
                                                       c10::MemoryFormat::ChannelsLast3d, c10::MemoryFormat::Preserve};
      const int64_t number = fields_.Int(value);
      if (number >= 1 && number <= 4) return static_cast<int64_t>(kFormats[number - 1]);
      fields_.Fail("has a memory format that is not supported", value.dump());
      return {};
    }
    fields_.Fail("has an argument of a kind that is not supported", kind);
    return {};
  }

  // A name or a number of a union such as SymIntArgument.
  ProgramItem Symbol(const Scope& scope, const json& value) {
    const json* content = nullptr;
    const std::string kind = fields_.Union(value, content);
    if (kind == "as_name") return Find(scope, *content);
    return {.literal = Literal(kind, *content)};
  }

  ProgramItem TensorOf(const Scope& scope, const json& value) { return Find(scope, fields_.At(value, "name")); }

  ProgramItem OptionalTensorOf(const Scope& scope, const json& value) {
    const json* content = nullptr;
    const std::string kind = fields_.Union(value, content);
    if (kind == "as_tensor") return TensorOf(scope, *content);
    return {.literal = Literal(kind, *content)};
  }

  ProgramArgument Argument(const Scope& scope, const std::string& kind, const json& value) {
    ProgramArgument argument;
    const auto list = [&](const auto& read) {
      argument.kind = ProgramArgument::Kind::kList;
      if (!value.is_array()) fields_.Fail("must be a list", value.type_name());
      for (const json& item : value) argument.items.push_back(read(item));
    };
    if (kind == "as_tensor") {
      argument.items = {TensorOf(scope, value)};
    } else if (kind == "as_tensors") {
      list([&](const json& item) { return TensorOf(scope, item); });
    } else if (kind == "as_optional_tensor") {
      argument.items = {OptionalTensorOf(scope, value)};
    } else if (kind == "as_optional_tensors") {
      list([&](const json& item) { return OptionalTensorOf(scope, item); });
    } else if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
      argument.items = {Symbol(scope, value)};
    } else if (kind == "as_sym_ints" || kind == "as_sym_floats" || kind == "as_sym_bools") {
      list([&](const json& item) { return Symbol(scope, item); });
    } else if (kind == "as_ints") {
      list([&](const json& item) { return ProgramItem{.literal = fields_.Int(item)}; });
    } else if (kind == "as_floats") {
      list([&](const json& item) { return ProgramItem{.literal = fields_.Double(item)}; });
    } else if (kind == "as_bools") {
      list([&](const json& item) { return ProgramItem{.literal = fields_.Bool(item)}; });
    } else if (kind == "as_device") {
      fields_.Object(value, {"type"}, {"index"});
      fields_.Text(fields_.At(value, "type"));
      argument.kind = ProgramArgument::Kind::kDevice;
    } else {
      argument.items = {{.literal = Literal(kind, value)}};
    }
    return argument;
  }

  // ----- nodes

  void ReadNodes(const json& graph, Scope& scope, Surroundings around) {
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

  void ReadNode(const json& node, const std::string& target, const std::string& name, Scope& scope,
                Surroundings around) {
    if (graph_.nodes.size() >= static_cast<size_t>(limits_.nodes)) {
      return fields_.Fail(absl::StrCat("must have at most ", limits_.nodes, " nodes"), "more");
    }
    ProgramNode read{.name = name, .target = target, .arguments = {}, .outputs = {}, .modules = {}};
    read.gradients = around.gradients;
    read.autocast = around.autocast;
    for (const json& input : fields_.List(node, "inputs")) {
      fields_.Object(input, {"name", "arg"}, {"kind"});
      const json* value = nullptr;
      const std::string kind = fields_.Union(fields_.At(input, "arg"), value);
      read.arguments.push_back(Argument(scope, kind, *value));
      read.arguments.back().name = fields_.Text(fields_.At(input, "name"));
    }
    const json& outputs = fields_.List(node, "outputs");
    for (const json& output : outputs) {
      const json* value = nullptr;
      const std::string kind = fields_.Union(output, value);
      if (kind == "as_tensors" && outputs.size() == 1 && value->is_array()) {
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

  std::vector<ProgramModule> Modules(const json& metadata) {
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

  // Puts the nodes of a graph that is an argument into the place of the call.
  void Unfold(const json& node, const std::string& target, Scope& scope, Surroundings around) {
    const json& inputs = fields_.List(node, "inputs");
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
    Scope inner;
    for (size_t i = 0; i < names.size() && fields_.ok(); ++i) {
      const auto& [kind, value] = arguments[position + 1 + i];
      const ProgramArgument argument = Argument(scope, kind, *value);
      const json* name = nullptr;
      const std::string name_kind = fields_.Union(names[i], name);
      if (argument.kind != ProgramArgument::Kind::kItem) return fields_.Fail("takes single values only", kind);
      Define(inner, fields_.Text(fields_.At(*name, name_kind == "as_tensor" ? "name" : "as_name")), argument.items[0]);
    }
    ReadNodes(graph, inner, around);
    BindResults(node, graph, inner, scope);
  }

  void BindResults(const json& node, const json& graph, const Scope& inner, Scope& scope) {
    std::vector<ProgramItem> results;
    for (const json& output : fields_.List(graph, "outputs")) {
      const json* value = nullptr;
      const std::string kind = fields_.Union(output, value);
      const ProgramArgument argument = Argument(inner, kind, *value);
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

  // ----- outputs

  void ReadOutputs(const json& graph, const json& specs, const json& module) {
    fields_.Enter("signature");
    const json& outputs = fields_.List(graph, "outputs");
    if (outputs.size() != specs.size()) return fields_.Fail("must tell of each output", absl::StrCat(specs.size()));
    std::vector<std::string> names = OutputNames(module, outputs.size());
    for (size_t i = 0; i < specs.size() && fields_.ok(); ++i) {
      fields_.Enter(absl::StrCat("output_specs[", i, "]"));
      const json* spec = nullptr;
      const std::string kind = fields_.Union(specs[i], spec);
      if (kind != "user_output" && kind != "loss_output") {
        fields_.Fail("must be what the model gives: export it without run_decompositions", kind);
        return;
      }
      const json* value = nullptr;
      const std::string value_kind = fields_.Union(outputs[i], value);
      ProgramArgument argument = Argument(scope_, value_kind, *value);
      if (argument.items.size() != 1) return fields_.Fail("must be one value", value_kind);
      if (!argument.items[0].is_value() && argument.items[0].literal.isNone()) continue;
      graph_.outputs.push_back({.name = std::move(names[i]), .item = std::move(argument.items[0])});
      if (value_kind == "as_tensor") ReadOutputMeta(graph, fields_.Text(fields_.At(*value, "name")));
    }
  }

  void ReadOutputMeta(const json& graph, const std::string& name) {
    const json& metas = fields_.Map(graph, "tensor_values");
    if (!metas.contains(name)) return fields_.Fail("must have a type and a shape", name);
    const json& meta = metas[name];
    ProgramOutput& output = graph_.outputs.back();
    output.tensor = true;
    output.type = ProgramScalarType(fields_.At(meta, "dtype"), fields_);
    for (const json& size : fields_.List(meta, "sizes")) {
      const json* content = nullptr;
      output.shape.push_back(fields_.Union(size, content) == "as_int" ? fields_.Int(*content) : -1);
    }
    if (output.shape.size() > static_cast<size_t>(limits_.rank)) fields_.Fail("must have fewer dimensions", name);
  }

  // What the model's own code calls its outputs: the keys of a dictionary, positions in a tuple.
  std::vector<std::string> OutputNames(const json& module, size_t count) {
    std::vector<std::string> names;
    const json& calls = fields_.List(module, "module_call_graph");
    if (!calls.empty()) {
      const json& spec = fields_.At(fields_.At(calls[0], "signature"), "out_spec");
      const json tree = json::parse(spec.is_string() ? spec.get<std::string>() : "", nullptr, false);
      if (tree.is_array() && tree.size() == 2) LeafNames(tree[1], "", 0, count, names);
    }
    if (names.size() != count) {
      names.clear();
      for (size_t i = 0; i < count; ++i) names.push_back(absl::StrCat("output", i));
    }
    std::set<std::string> seen;
    for (std::string& name : names) {
      if (name.empty()) name = "output";
      for (char& c : name) {
        if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '_';
      }
      if (name.size() > 100) name.resize(100);
      while (!seen.insert(name).second) name += "_";
    }
    return names;
  }

  void LeafNames(const json& spec, const std::string& path, int depth, size_t most, std::vector<std::string>& names) {
    const json& children = fields_.At(spec, "children_spec");
    if (!children.is_array() || depth > limits_.depth || names.size() > most) return;
    if (fields_.At(spec, "type").is_null()) {
      names.push_back(path);
      return;
    }
    const json& context = fields_.At(spec, "context");
    const json keys = json::parse(context.is_string() ? context.get<std::string>() : "", nullptr, false);
    for (size_t i = 0; i < children.size(); ++i) {
      const bool named = keys.is_array() && keys.size() == children.size() && keys[i].is_string();
      const std::string name = named ? keys[i].get<std::string>() : absl::StrCat(path.empty() ? "output" : "", i);
      LeafNames(children[i], path.empty() ? name : absl::StrCat(path, ".", name), depth + 1, most, names);
    }
  }

  const ProgramLimits& limits_;
  std::map<std::string, int> by_name_;
  ProgramFields fields_;
  ProgramGraph graph_;
  Scope scope_;
};

}  // namespace

absl::StatusOr<ProgramGraph> ParseProgramGraph(const json& document, const std::string& record,
                                               const std::vector<ProgramTensor>& tensors, const ProgramLimits& limits) {
  return GraphReader(tensors, limits).Read(document, record);
}

}  // namespace penstock
