#include "engine/program/program_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr std::string_view kSuffix = ".pt2";
constexpr size_t kMaxNameBytes = 128;
constexpr char kField[] = "spec.model.program";

}  // namespace

bool IsProgramName(std::string_view name) {
  const auto fits = [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-'; };
  return name.size() > kSuffix.size() && name.size() <= kMaxNameBytes && name[0] != '.' && name[0] != '-' &&
         name.substr(name.size() - kSuffix.size()) == kSuffix && std::all_of(name.begin(), name.end(), fits);
}

absl::StatusOr<std::shared_ptr<const ProgramModel>> LoadProgram(const std::string& root, const std::string& name,
                                                                FileSystem* files, const ProgramLimits& limits,
                                                                ProgramCuts cuts) {
  if (!IsProgramName(name)) {
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat(kField, ": must be the name of a .pt2 file in the model root, got ", Shortened(name)))
        .With("field", kField)
        .With("value", Shortened(name));
  }
  const std::string path = absl::StrCat(root, "/", name);
  if (root.empty() || !files->Exists(path)) {
    return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                 absl::StrCat(kField, ": is not in the model root, got ", name))
        .With("field", kField)
        .With("value", name);
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::string bytes, files->Read(path));
  PENSTOCK_ASSIGN_OR_RETURN(ExportedProgram program,
                            ReadExportedProgram(std::make_shared<const std::string>(std::move(bytes)), limits));
  return ProgramModel::Create(std::move(program), cuts);
}

}  // namespace penstock
