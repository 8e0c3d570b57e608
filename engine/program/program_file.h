#pragma once

// Exported programs in the server's model root.

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/base/file.h"
#include "engine/program/program_model.h"

namespace penstock {

// A name that a model may have in the root: 1 to 128 letters, digits, _ . -, not beginning with a dot or -, ending in
// .pt2. So it is no path.
bool IsProgramName(std::string_view name);

// Reads and cuts ROOT/NAME. An empty root has no models.
//
// Fails:     NOT_FOUND / MODEL_NOT_FOUND; SPEC_INVALID naming spec.model.program for a name that is none; as
//            ReadExportedProgram and ProgramModel::Create.
absl::StatusOr<std::shared_ptr<const ProgramModel>> LoadProgram(const std::string& root, const std::string& name,
                                                                FileSystem* files, const ProgramLimits& limits = {},
                                                                ProgramCuts cuts = ProgramCuts::kModules);

}  // namespace penstock
