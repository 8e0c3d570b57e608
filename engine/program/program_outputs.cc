#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/program/program_json.h"

// The outputs' names, from the description of the tree that the model's code gives, a JSON text in the JSON.

namespace penstock {
namespace {

using nlohmann::json;

constexpr size_t kMaxNameBytes = 100;

// A JSON text inside the JSON; null if it is none.
json ParseText(const json& text, const ProgramLimits& limits) {
  if (!text.is_string()) return nullptr;
  absl::StatusOr<json> parsed = ParseProgramJson(text.get_ref<const std::string&>(), "out_spec", limits);
  return parsed.ok() ? *std::move(parsed) : nullptr;
}

void LeafNames(const json& spec, const std::string& path, size_t most, const ProgramLimits& limits,
               const ProgramFields& fields, std::vector<std::string>& names) {
  const json& children = fields.At(spec, "children_spec");
  if (!children.is_array() || names.size() > most) return;
  if (fields.At(spec, "type").is_null()) {
    names.push_back(path);
    return;
  }
  const json keys = ParseText(fields.At(spec, "context"), limits);
  for (size_t i = 0; i < children.size(); ++i) {
    const bool named = keys.is_array() && keys.size() == children.size() && keys[i].is_string();
    const std::string name = named ? keys[i].get<std::string>() : absl::StrCat(path.empty() ? "output" : "", i);
    LeafNames(children[i], path.empty() ? name : absl::StrCat(path, ".", name), most, limits, fields, names);
  }
}

}  // namespace

std::vector<std::string> ProgramOutputNames(const json& module, size_t count, const ProgramLimits& limits,
                                            ProgramFields& fields) {
  std::vector<std::string> names;
  const json& calls = fields.List(module, "module_call_graph");
  if (!calls.empty()) {
    const json tree = ParseText(fields.At(fields.At(calls[0], "signature"), "out_spec"), limits);
    if (tree.is_array() && tree.size() == 2) LeafNames(tree[1], "", count, limits, fields, names);
  }
  if (names.size() != count) {
    names.clear();
    for (size_t i = 0; i < count; ++i) names.push_back(absl::StrCat("output", i));
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    std::string& name = names[i];
    if (name.empty()) name = "output";
    for (char& c : name) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '_';
    }
    if (name.size() > kMaxNameBytes) name.resize(kMaxNameBytes);
    while (!seen.insert(name).second) absl::StrAppend(&name, "_", i);
  }
  return names;
}

}  // namespace penstock
