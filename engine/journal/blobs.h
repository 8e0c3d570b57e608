#pragma once

// Large inputs as files beside the database, each under the digest of its content.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/journal/database.h"

namespace penstock {

class FileSystem;

// The files of one journal and how often its rows name each.
//
// Model:     A folder `blobs` with one file per content, under the hex digits of its SHA-256; the table blobs with
//            bytes and references. A file is written under a temporary name, synced, and renamed, which syncs the
//            folder: what has its name is whole. References change in the transaction of the rows that name the
//            content. A file goes when no durable row names it, so after the commit that took the last reference; what
//            a crash leaves between goes with RemoveLeftovers().
// Owns:      the folder; nobody else writes there. The Database must outlive it.
// Threads:   those of the database; Read() and CopyTo() from any.
// Lifecycle: RemoveLeftovers() once, after Open(). Store() before the transaction; AddReference() and DropReference()
//            in it; then Committed() or RolledBack(); RemoveUnreferenced() at will.
// Fails:     STORAGE_FULL; JOURNAL_CORRUPT for a file that is missing or is not its content, naming it; what the disk
//            refuses.
class Blobs {
 public:
  static absl::StatusOr<std::unique_ptr<Blobs>> Open(FileSystem* files, Database* database, const std::string& folder);
  // Removes what a crash has left in the folder. Once the references are known to be right.
  absl::Status RemoveLeftovers();

  // Makes a content durable, unless it is. `digest`: "sha256:…" of it.
  absl::Status Store(const std::string& digest, std::string_view content);
  absl::Status AddReference(const std::string& digest, int64_t bytes);
  absl::Status DropReference(const std::string& digest);
  void Committed();
  void RolledBack() { changes_.clear(); }
  // Removes the files that no row names, but none while one is held.
  void RemoveUnreferenced();
  void Hold() { ++holds_; }
  void Release() { --holds_; }

  // The content, compared with its digest.
  absl::StatusOr<std::string> Read(const std::string& digest) const;
  // Writes a content into another folder of this form.
  absl::Status CopyTo(const std::string& digest, const std::string& folder) const;

  // How often the rows of the database name each content.
  const std::map<std::string, int64_t>& references() const { return references_; }
  // Whether the file of a content is there, with that size.
  absl::Status CheckFile(const std::string& digest, int64_t bytes) const;

  // Makes one folder whose existence survives a loss of power.
  static absl::Status MakeDurableFolder(FileSystem* files, const std::string& above, const std::string& name);

 private:
  Blobs(FileSystem* files, Database* database, std::string folder)
      : files_(files), database_(database), folder_(std::move(folder)) {}
  absl::Status ReadTable();
  static absl::Status Write(FileSystem* files, const std::string& folder, const std::string& digest,
                            std::string_view content);

  FileSystem* const files_;
  Database* const database_;
  const std::string folder_;
  std::map<std::string, int64_t> references_;  // by digest; of durable rows
  std::map<std::string, int64_t> changes_;     // of the open transaction
  std::set<std::string> durable_;              // digests of the files that are whole
  int holds_ = 0;
  Statement add_;
  Statement drop_;
  Statement forget_;
};

}  // namespace penstock
