// Copies of checkpoints for another state folder.

#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/base/file_pieces.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/wire/checksum.h"

namespace penstock {

absl::Status CheckpointFolder::CopyTo(const std::string& id, const std::string& folder) {
  absl::MutexLock disk_lock(&disk_mu_);
  PENSTOCK_RETURN_IF_ERROR(Find(id).status());
  const std::string from = absl::StrCat(folder_, "/", id);
  const std::string to = absl::StrCat(folder, "/", id);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, files_->Read(from + "/manifest.json"));
  const absl::StatusOr<CheckpointManifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return CheckpointCorrupt(id, "its manifest");
  PENSTOCK_RETURN_IF_ERROR(files_->CreateDirectories(to));
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                            files_->Create(absl::StrCat(to, "/", manifest->file)));
  int64_t bytes = 0;
  uint32_t checksum = 0;
  PENSTOCK_RETURN_IF_ERROR(ReadInPieces(absl::StrCat(from, "/", manifest->file), [&](std::string_view piece) {
    bytes += static_cast<int64_t>(piece.size());
    checksum = ExtendCrc32c(checksum, piece);
    return file->Append(piece);
  }));
  if (bytes != manifest->bytes || checksum != manifest->crc32c) return CheckpointCorrupt(id, manifest->file);
  PENSTOCK_RETURN_IF_ERROR(file->Sync());
  PENSTOCK_RETURN_IF_ERROR(file->Close());
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> copied, files_->Create(to + "/manifest.json.new"));
  PENSTOCK_RETURN_IF_ERROR(copied->Append(text));
  PENSTOCK_RETURN_IF_ERROR(copied->Sync());
  PENSTOCK_RETURN_IF_ERROR(copied->Close());
  return files_->Rename(to + "/manifest.json.new", to + "/manifest.json");  // it syncs the folder
}

}  // namespace penstock
