#include "client/cli/checkpoint_name.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/exit_code.h"

namespace penstock {

absl::StatusOr<std::string> CheckpointName(const std::string& text, std::string_view argument) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() == 4 && parts[0] == "pipelines" && parts[2] == "checkpoints") return text;
  if (parts.size() == 2 && !parts[0].empty() && !parts[1].empty()) {
    return absl::StrCat("pipelines/", parts[0], "/checkpoints/", parts[1]);
  }
  return UsageError(argument, absl::StrCat("must be PIPELINE/CHECKPOINT, got ", text));
}

}  // namespace penstock
