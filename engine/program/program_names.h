#pragma once

// The names that a program's author gave its inputs and outputs. Graphs have names of their own, which torch.export
// makes in lower case.

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "engine/program/exported_program.h"

namespace penstock {

// Where penstock.export puts them: extra_files of torch.export.save. A file without the record is called by its graphs'
// names.
inline constexpr char kNamesRecord[] = "extra/penstock_names.json";

// Gives inputs and outputs the names of the record {"inputs": [...], "outputs": [...]}, which has the evaluation graph's
// order, in both graphs.
//
// Fails:     SPEC_INVALID naming the entry: another number of names, one that no tensor can have, one that repeats.
absl::Status NameProgram(const nlohmann::json& record, ExportedProgram& program);

}  // namespace penstock
