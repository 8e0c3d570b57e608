#include "engine/program/program_names.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/program/program_json.h"
#include "engine/wire/tensor_name.h"

namespace penstock {
namespace {

using nlohmann::json;

// Names by the graph's own ones.
using Renamed = std::map<std::string, std::string>;

// Reads one list of names, as long as what it names.
template <typename Named>
Renamed ReadNames(const json& record, const char* key, const std::vector<Named>& named, ProgramFields& fields) {
  Renamed names;
  fields.Enter(kNamesRecord);
  const json& list = fields.List(record, key);
  if (fields.ok() && list.size() != named.size()) {
    fields.Fail(absl::StrCat(key, " must name each of ", named.size()), absl::StrCat(list.size()));
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < list.size() && fields.ok(); ++i) {
    fields.Enter(absl::StrCat(kNamesRecord, ": ", key, "[", i, "]"));
    const std::string name = fields.Text(list[i]);
    if (!IsTensorName(name)) fields.Fail("must be 1 to 128 printable ASCII characters", name);
    if (!seen.insert(name).second) fields.Fail("must not repeat", name);
    names[named[i].name] = name;
  }
  return names;
}

// What the names are not of keeps its own: graphs that differ are refused where they are compared.
template <typename Named>
void Rename(const Renamed& names, std::vector<Named>& named) {
  for (Named& one : named) {
    const auto found = names.find(one.name);
    if (found != names.end()) one.name = found->second;
  }
}

}  // namespace

absl::Status NameProgram(const json& record, ExportedProgram& program) {
  ProgramFields fields;
  fields.Enter(kNamesRecord);
  fields.Object(record, {"inputs", "outputs"});
  const Renamed inputs = ReadNames(record, "inputs", program.graph.inputs, fields);
  const Renamed outputs = ReadNames(record, "outputs", program.graph.outputs, fields);
  PENSTOCK_RETURN_IF_ERROR(fields.status());
  for (ProgramGraph* graph : {&program.graph, program.training.has_value() ? &*program.training : nullptr}) {
    if (graph == nullptr) continue;
    Rename(inputs, graph->inputs);
    Rename(outputs, graph->outputs);
  }
  return absl::OkStatus();
}

}  // namespace penstock
