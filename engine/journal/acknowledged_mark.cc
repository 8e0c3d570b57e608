#include "engine/journal/acknowledged_mark.h"

#include <sqlite3.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "engine/journal/journal_errors.h"
#include "engine/wire/checksum.h"

namespace penstock {
namespace {

struct MarkContent {
  int64_t commits = 0;
  uint32_t crc32c = 0;
  uint32_t reserved = 0;
};

uint32_t ChecksumOf(int64_t commits) {
  return Crc32c(std::string_view(reinterpret_cast<const char*>(&commits), sizeof(commits)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AcknowledgedMark>> AcknowledgedMark::Open(const std::string& path,
                                                                         const char* vfs_name) {
  sqlite3_initialize();
  sqlite3_vfs* vfs = sqlite3_vfs_find(vfs_name);
  if (vfs == nullptr) return FromSqlite(nullptr, SQLITE_ERROR, "open the mark");
  std::unique_ptr<AcknowledgedMark> mark(new AcknowledgedMark(path));
  mark->storage_.resize(static_cast<size_t>(vfs->szOsFile) / sizeof(int64_t) + 1);
  auto* file = reinterpret_cast<sqlite3_file*>(mark->storage_.data());
  // As a log it gets the access rights of the database whose name it begins with.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_WAL;
  const int code = vfs->xOpen(vfs, mark->path_.c_str(), file, flags, nullptr);
  if (code != SQLITE_OK) return FromSqlite(nullptr, code, "open the mark");
  mark->file_ = file;
  return mark;
}

AcknowledgedMark::~AcknowledgedMark() {
  if (file_ != nullptr) file_->pMethods->xClose(file_);
}

int64_t AcknowledgedMark::Read() const {
  MarkContent content;
  if (file_->pMethods->xRead(file_, &content, sizeof(content), 0) != SQLITE_OK) return 0;
  return content.crc32c == ChecksumOf(content.commits) ? content.commits : 0;
}

void AcknowledgedMark::Write(int64_t commits) {
  const MarkContent content{.commits = commits, .crc32c = ChecksumOf(commits)};
  file_->pMethods->xWrite(file_, &content, sizeof(content), 0);
}

}  // namespace penstock
