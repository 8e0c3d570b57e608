#include "engine/checkpoint/epoch_file.h"

#include <limits>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {

absl::StatusOr<Epoch> RaiseEpoch(FileSystem* files, const std::string& state_dir) {
  PENSTOCK_RETURN_IF_ERROR(files->CreateDirectories(state_dir));
  const std::string path = absl::StrCat(state_dir, "/epoch");
  uint32_t last = 0;
  absl::StatusOr<std::string> text = files->Read(path);
  if (text.ok()) {
    if (!absl::SimpleAtoi(*text, &last) || *text != absl::StrCat(last, "\n") ||
        last == std::numeric_limits<uint32_t>::max()) {
      return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_CORRUPT",
                   "the file `epoch` in the state directory holds no number; write one larger than any used before");
    }
  } else if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files->Create(path + ".new"));
  PENSTOCK_RETURN_IF_ERROR(file->Append(absl::StrCat(last + 1, "\n")));
  PENSTOCK_RETURN_IF_ERROR(file->Sync());
  PENSTOCK_RETURN_IF_ERROR(file->Close());
  PENSTOCK_RETURN_IF_ERROR(files->Rename(path + ".new", path));
  return Epoch(last + 1);
}

}  // namespace penstock
