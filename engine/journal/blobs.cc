#include "engine/journal/blobs.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/durable_file.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "engine/wire/sha256.h"

namespace penstock {
namespace {

constexpr std::string_view kDigestPrefix = "sha256:";
// No digest has such a name, so a file under it is not a content yet.
constexpr char kUnfinishedBlob[] = ".unfinished-";

std::string HexOf(const std::string& digest) {
  PENSTOCK_CHECK(Sha256::IsDigest(digest));  // rows are verified, and callers' digests are made by Sha256
  return digest.substr(kDigestPrefix.size());
}

absl::Status DamagedBlob(const std::string& digest, const char* what) {
  return JournalCorrupt(absl::StrCat("the content ", digest, " ", what));
}

}  // namespace

absl::Status Blobs::MakeDurableFolder(FileSystem* files, const std::string& above, const std::string& name) {
  const std::string folder = absl::StrCat(above, "/", name);
  if (files->Exists(folder)) return absl::OkStatus();
  const std::string made = absl::StrCat(above, "/.new-", name);
  PENSTOCK_RETURN_IF_ERROR(files->CreateDirectories(made));
  return files->Rename(made, folder);  // it syncs the folder above
}

absl::StatusOr<std::unique_ptr<Blobs>> Blobs::Open(FileSystem* files, Database* database, const std::string& folder) {
  std::unique_ptr<Blobs> blobs(new Blobs(files, database, folder));
  PENSTOCK_ASSIGN_OR_RETURN(blobs->add_, database->Prepare("INSERT INTO blobs(digest, bytes, refs) VALUES(?1, ?2, 1) "
                                                           "ON CONFLICT(digest) DO UPDATE SET refs = refs + 1"));
  PENSTOCK_ASSIGN_OR_RETURN(blobs->drop_, database->Prepare("UPDATE blobs SET refs = refs - 1 WHERE digest = ?1"));
  PENSTOCK_ASSIGN_OR_RETURN(blobs->forget_, database->Prepare("DELETE FROM blobs WHERE digest = ?1 AND refs = 0"));
  PENSTOCK_RETURN_IF_ERROR(blobs->ReadTable());
  return blobs;
}

absl::Status Blobs::ReadTable() {
  PENSTOCK_ASSIGN_OR_RETURN(Statement select, database_->Prepare("SELECT digest, bytes, refs FROM blobs"));
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return absl::OkStatus();
    const std::string digest(select.Blob(0));
    // In a damaged tree a row may come again, and again.
    if (!Sha256::IsDigest(digest) || select.Integer(2) <= 0 || references_.contains(digest))
      return JournalCorrupt("the table of contents has a bad row");
    PENSTOCK_RETURN_IF_ERROR(CheckFile(digest, select.Integer(1)));
    references_[digest] = select.Integer(2);
    durable_.insert(digest);
  }
}

absl::Status Blobs::CheckFile(const std::string& digest, int64_t bytes) const {
  const absl::StatusOr<FileInfo> info = files_->Info(absl::StrCat(folder_, "/", HexOf(digest)));
  if (absl::IsNotFound(info.status())) return DamagedBlob(digest, "is missing");
  PENSTOCK_RETURN_IF_ERROR(info.status());
  return info->plain && info->bytes == bytes ? absl::OkStatus() : DamagedBlob(digest, "has another size");
}

absl::Status Blobs::RemoveLeftovers() {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->List(folder_));
  for (const std::string& name : names) {
    const std::string digest = absl::StrCat(absl::string_view(kDigestPrefix.data(), kDigestPrefix.size()), name);
    if (!references_.contains(digest)) PENSTOCK_RETURN_IF_ERROR(files_->RemoveAll(absl::StrCat(folder_, "/", name)));
  }
  return absl::OkStatus();
}

absl::Status Blobs::Write(FileSystem* files, const std::string& folder, const std::string& digest,
                          std::string_view content) {
  const std::string name = HexOf(digest);  // what stays unfinished goes at the next Open()
  return WriteDurable(files, absl::StrCat(folder, "/", kUnfinishedBlob, name), absl::StrCat(folder, "/", name),
                      content);
}

absl::Status Blobs::Store(const std::string& digest, std::string_view content) {
  if (durable_.contains(digest)) return absl::OkStatus();
  PENSTOCK_RETURN_IF_ERROR(Write(files_, folder_, digest, content));
  durable_.insert(digest);
  return absl::OkStatus();
}

absl::Status Blobs::AddReference(const std::string& digest, int64_t bytes) {
  PENSTOCK_CHECK(durable_.contains(digest));
  PENSTOCK_RETURN_IF_ERROR(add_.Bind(1, digest).Bind(2, bytes).Run());
  ++changes_[digest];
  return absl::OkStatus();
}

absl::Status Blobs::DropReference(const std::string& digest) {
  PENSTOCK_RETURN_IF_ERROR(drop_.Bind(1, digest).Run());
  PENSTOCK_RETURN_IF_ERROR(forget_.Bind(1, digest).Run());
  --changes_[digest];
  return absl::OkStatus();
}

void Blobs::Committed() {
  for (const auto& [digest, change] : changes_) {
    if ((references_[digest] += change) == 0) references_.erase(digest);
  }
  changes_.clear();
}

void Blobs::RemoveUnreferenced() {
  if (holds_ > 0) return;
  for (auto it = durable_.begin(); it != durable_.end();) {
    if (references_.contains(*it)) {
      ++it;
      continue;
    }
    // What can't be removed goes at the next Open(); until then it is not taken for durable again.
    if (const absl::Status removed = files_->RemoveAll(absl::StrCat(folder_, "/", HexOf(*it))); !removed.ok()) {
      LogWarning("can't remove an input that no call needs", {{"digest", *it}});
    }
    it = durable_.erase(it);
  }
}

absl::StatusOr<std::string> Blobs::Read(const std::string& digest) const {
  absl::StatusOr<std::string> content = files_->Read(absl::StrCat(folder_, "/", HexOf(digest)));
  if (absl::IsNotFound(content.status())) return DamagedBlob(digest, "is missing");
  PENSTOCK_RETURN_IF_ERROR(content.status());
  if (Sha256::Of(*content) != digest) return DamagedBlob(digest, "is not what was written");
  return content;
}

absl::Status Blobs::CopyTo(const std::string& digest, const std::string& folder) const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string content, Read(digest));
  return Write(files_, folder, digest, content);
}

}  // namespace penstock
