#include "engine/base/durable_file.h"

#include <memory>

#include "engine/base/file.h"
#include "engine/base/status_macros.h"

namespace penstock {

absl::Status WriteDurable(FileSystem* files, const std::string& unfinished, const std::string& path,
                          std::string_view content) {
  return WriteDurable(files, unfinished, path, [content](WritableFile& file) { return file.Append(content); });
}

absl::Status WriteDurable(FileSystem* files, const std::string& unfinished, const std::string& path,
                          const std::function<absl::Status(WritableFile&)>& write) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files->Create(unfinished));
  absl::Status written = write(*file);
  if (written.ok()) written = file->Sync();
  if (written.ok()) written = file->Close();
  if (written.ok()) written = files->Rename(unfinished, path);
  if (!written.ok()) files->RemoveAll(unfinished).IgnoreError();
  return written;
}

}  // namespace penstock
