#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/program/program_arguments.h"
#include "engine/program/program_dimension.h"
#include "engine/program/program_json.h"
#include "engine/program/program_nodes.h"

// Source of the format: torch/_export/serde/schema.py of PyTorch 2.11; in LibTorch, generated_serialization_types.h.

namespace penstock {
namespace {

using nlohmann::json;

constexpr int64_t kSchemaMajor = 8;
constexpr int64_t kNewestSchemaMinor = 17;
constexpr int64_t kOperatorSet = 10;
constexpr int64_t kMaxAddend = int64_t{1} << 40;  // of a dimension that varies

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
    nodes_.CheckGraph(graph);
    if (fields_.ok()) ReadRanges(fields_.Map(document, "range_constraints"));
    if (fields_.ok()) ReadInputs(graph, fields_.List(signature, "input_specs"));
    if (fields_.ok()) nodes_.Read(graph, scope_);
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

  void ReadRanges(const json& ranges) {
    for (const auto& [symbol, range] : ranges.items()) {
      fields_.Enter(absl::StrCat("range_constraints[", symbol, "]"));
      fields_.Object(range, {"min_val", "max_val"});
      const auto bound = [this, &range = range](const char* key, int64_t open) {
        const json& value = fields_.At(range, key);
        return value.is_null() ? open : fields_.Int(value);
      };
      const ProgramRange read = {bound("min_val", 0), bound("max_val", std::numeric_limits<int64_t>::max())};
      if (read.least > read.most) fields_.Fail("must begin before it ends", absl::StrCat(read.least));
      graph_.symbols[symbol] = read;
    }
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
        const ProgramItem item = {.literal = arguments_.Literal(value_kind, *value)};
        nodes_.Define(scope_, fields_.Text(fields_.At(*spec, "name")), item);
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
    graph_.tensors[nodes_.Make(scope_, name)] = found->second;
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
    ProgramInput user{.name = name, .value = nodes_.Make(scope_, name), .type = at::kFloat, .shape = {}};
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
    if (expression.size() > kMaxDimensionBytes) fields_.Fail("has too long a dimension", expression);
    if (!fields_.ok()) return {};
    std::optional<ProgramDimension> read = ParseProgramDimension(expression);
    if (!read.has_value()) {
      fields_.Fail("has a dimension that is no sum or product of numbers and one symbol", expression);
      return {};
    }
    ProgramDimension dimension = *std::move(read);
    const json& hint = fields_.At(fields_.At(*content, "hint"), "as_int");
    dimension.example = hint.is_null() ? 1 : fields_.Int(hint);
    if (!dimension.symbol.empty() &&
        (dimension.factor < 1 || dimension.addend < -kMaxAddend || dimension.addend > kMaxAddend)) {
      fields_.Fail(absl::StrCat("must be a symbol at least once, plus a number within +-", kMaxAddend), expression);
    }
    if (dimension.symbol.empty() && dimension.addend < 0) fields_.Fail("must have sizes from 0", expression);
    if (dimension.example < 0) fields_.Fail("must have an example from 0", absl::StrCat(dimension.example));
    if (!dimension.symbol.empty() && graph_.symbols.count(dimension.symbol) == 0) {
      graph_.symbols[dimension.symbol] = {0, std::numeric_limits<int64_t>::max()};
    }
    return dimension;
  }

  // ----- outputs

  void ReadOutputs(const json& graph, const json& specs, const json& module) {
    fields_.Enter("signature");
    const json& outputs = fields_.List(graph, "outputs", limits_.items);
    if (outputs.size() != specs.size()) return fields_.Fail("must tell of each output", absl::StrCat(specs.size()));
    std::vector<std::string> names = ProgramOutputNames(module, outputs.size(), limits_, fields_);
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
      ProgramArgument argument = arguments_.Argument(scope_, value_kind, *value);
      if (argument.items.size() != 1) return fields_.Fail("must be one value", value_kind);
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

  const ProgramLimits& limits_;
  std::map<std::string, int> by_name_;
  ProgramFields fields_;
  ProgramArguments arguments_{fields_, limits_};
  ProgramGraph graph_;
  ProgramNodes nodes_{graph_, fields_, limits_};
  ProgramScope scope_;
};

}  // namespace

absl::StatusOr<ProgramGraph> ParseProgramGraph(const json& document, const std::string& record,
                                               const std::vector<ProgramTensor>& tensors, const ProgramLimits& limits) {
  return GraphReader(tensors, limits).Read(document, record);
}

}  // namespace penstock
