#include "server/folder_checks.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// The path itself, or the closest folder above it that exists.
fs::path ClosestExisting(const fs::path& path) {
  std::error_code none;
  fs::path at = fs::absolute(path, none);
  while (!fs::exists(at, none) && at != at.parent_path()) at = at.parent_path();
  return at;
}

// A folder that is there and allows `access`, or, if `may_be_made`, can be made.
absl::Status CheckFolder(const std::string& field, const std::string& path, int access, bool may_be_made) {
  std::error_code none;
  if (!fs::exists(path, none) && may_be_made) {
    if (fs::is_directory(ClosestExisting(path), none)) return absl::OkStatus();
    return InvalidField(field, "must be a folder that can be made", path);
  }
  if (fs::is_directory(path, none) && ::access(path.c_str(), access) == 0) return absl::OkStatus();
  return InvalidField(
      field, (access & W_OK) != 0 ? "must be a folder that can be written" : "must be a folder that can be read", path);
}

}  // namespace

absl::Status CheckFolders(const DaemonOptions& options) {
  PENSTOCK_RETURN_IF_ERROR(CheckFolder("--state-dir", options.state_dir, R_OK | W_OK | X_OK, /*may_be_made=*/true));
  if (!options.model_root.empty()) {
    const int access = options.allow_model_upload ? R_OK | W_OK | X_OK : R_OK | X_OK;
    PENSTOCK_RETURN_IF_ERROR(CheckFolder("--model-root", options.model_root, access, options.allow_model_upload));
  }
  if (options.otlp_file.empty()) return absl::OkStatus();
  std::error_code none;
  const fs::path folder = fs::absolute(options.otlp_file, none).parent_path();
  if (!fs::is_directory(folder, none) || fs::is_directory(options.otlp_file, none)) {
    return InvalidField("--otlp-file", "must be a file in a folder that exists", options.otlp_file);
  }
  return absl::OkStatus();
}

}  // namespace penstock
