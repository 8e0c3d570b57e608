// Copies of a journal that is in use.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/durable_file.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/file_pieces.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_paths.h"
#include "engine/journal/pipeline_journal.h"

namespace penstock {

// The copy gets its name when it is whole.
absl::Status PipelineJournal::BackUp(const std::string& folder) {
  FileSystem* files = options_.files;
  if (files->Exists(folder)) return InvalidField("folder", "exists", "");
  const std::string unfinished = absl::StrCat(folder, ".unfinished");
  const JournalPaths paths(unfinished);
  PENSTOCK_RETURN_IF_ERROR(files->RemoveAll(unfinished));
  PENSTOCK_RETURN_IF_ERROR(Blobs::MakeDurableFolder(files, paths.above, paths.name));
  PENSTOCK_RETURN_IF_ERROR(Blobs::MakeDurableFolder(files, unfinished, JournalPaths::kBlobs));

  std::unique_ptr<DatabaseBackup> backup;
  {
    absl::MutexLock lock(&database_mu_);
    const Database::Options options{.files = files, .vfs = options_.vfs};
    PENSTOCK_ASSIGN_OR_RETURN(backup, DatabaseBackup::Begin(database_.get(), paths.database, options));
    blobs_->Hold();
  }
  const absl::Cleanup end = [&] {
    absl::MutexLock lock(&database_mu_);
    backup.reset();  // it reads the database
    blobs_->Release();
  };
  std::vector<std::string> digests;
  for (bool whole = false; !whole;) {
    absl::MutexLock lock(&database_mu_);  // between two steps others commit and read
    PENSTOCK_ASSIGN_OR_RETURN(whole, backup->Step());
    if (!whole) continue;
    for (const auto& [digest, references] : blobs_->references()) digests.push_back(digest);
  }
  for (const std::string& digest : digests) PENSTOCK_RETURN_IF_ERROR(blobs_->CopyTo(digest, paths.blobs));
  const std::string program = JournalPaths(folder_).program;
  if (files->Exists(program)) {
    const auto copy = [&](WritableFile& file) {
      return ReadInPieces(program, [&](std::string_view piece) { return file.Append(piece); });
    };
    PENSTOCK_RETURN_IF_ERROR(WriteDurable(files, paths.program + ".unfinished", paths.program, copy));
  }
  return files->Rename(unfinished, folder);
}

}  // namespace penstock
