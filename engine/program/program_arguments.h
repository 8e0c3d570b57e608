#pragma once

// Arguments of an exported program's operators, from JSON.

#include <map>
#include <string>

#include "engine/program/program_json.h"

namespace penstock {

// The names that a graph sees, and what they stand for. A graph inside a graph has a scope of its own.
using ProgramScope = std::map<std::string, ProgramItem>;

// Reads arguments, which are unions: literals, names of a scope, lists of them.
//
// Owns:      nothing: the fields, which take the faults, and the limits must outlive it.
// Threads:   one at a time.
class ProgramArguments {
 public:
  ProgramArguments(ProgramFields& fields, const ProgramLimits& limits) : fields_(fields), limits_(limits) {}

  // One argument of the kind as_... whose content is `value`. It has no name yet.
  ProgramArgument Argument(const ProgramScope& scope, const std::string& kind, const nlohmann::json& value);
  // A literal by itself.
  c10::IValue Literal(const std::string& kind, const nlohmann::json& value);

 private:
  ProgramItem Find(const ProgramScope& scope, const nlohmann::json& name);
  ProgramItem Symbol(const ProgramScope& scope, const nlohmann::json& value);
  ProgramItem TensorOf(const ProgramScope& scope, const nlohmann::json& value);
  ProgramItem OptionalTensorOf(const ProgramScope& scope, const nlohmann::json& value);

  ProgramFields& fields_;
  const ProgramLimits& limits_;
};

}  // namespace penstock
