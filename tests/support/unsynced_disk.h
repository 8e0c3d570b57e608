#pragma once

// A disk in memory that loses what was not synced: kill -9 alone never shows a missing sync.

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/file.h"

namespace penstock::testing {

// Files and folders for our own code and, through a VFS of its own, for SQLite.
//
// Model:     Each file has two contents, each folder two lists of names: as programs see it, and as it was when it was
//            last synced. A crash brings back the second ones, or, of each sector of 512 bytes and each name, one of
//            the two at random. A file's name is durable when its folder was synced, as by a rename; SQLite syncs the
//            folder with the first sync of a new log. What was open before a crash is dead: nothing that it does
//            reaches the disk.
// Threads:   any method from any thread.
// Example:   disk.Crash();
//            journal.reset();                            // it belongs to the life before
//            journal = *PipelineJournal::Open(..., {.files = &disk, .vfs = disk.vfs()});
class UnsyncedDisk : public FileSystem {
 public:
  // What a sync is of.
  enum class SyncOf { kDatabase, kLog, kFile, kFolder };

  UnsyncedDisk();
  ~UnsyncedDisk() override;
  const char* vfs() const { return name_.c_str(); }  // as SQLite knows it

  // Power fails: nothing stays that was not synced.
  void Crash() { CrashAt(nullptr); }
  // Power fails: of what was not synced, some stays.
  void CrashKeepingSome(uint64_t seed) {
    std::mt19937_64 random(seed);
    CrashAt(&random);
  }
  // The process dies, and the machine does not: what was written is there.
  void EndProcess() ABSL_LOCKS_EXCLUDED(mu_);
  // Syncs of that kind do nothing from now on, and say that they have.
  void Ignore(SyncOf kind) ABSL_LOCKS_EXCLUDED(mu_);
  // The sync that fails, counted from now: 0 is the next one, and all after it fail, too; negative: none.
  void FailSync(int64_t in) ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes that files may still grow by; negative: no limit.
  void SetFreeBytes(int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t free_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  // Syncs that were asked for, failed ones included.
  int64_t syncs() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t syncs(SyncOf kind) const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until so many syncs of that kind were asked for.
  void AwaitSyncs(SyncOf kind, int64_t count) ABSL_LOCKS_EXCLUDED(mu_);
  // Changes one byte where it lies, in both contents.
  void Flip(const std::string& path, size_t offset) ABSL_LOCKS_EXCLUDED(mu_);
  // Puts a content there, durably.
  void Put(const std::string& path, const std::string& content) ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::Status ReadInto(const std::string& path, const Arrived& arrived, std::string* bytes) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::Status CreateDirectories(const std::string& directory) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveAll(const std::string& path) override;
  bool Exists(const std::string& path) override;
  absl::StatusOr<FileInfo> Info(const std::string& path) override;

  // A file or a folder.
  struct Node {
    bool folder = false;
    std::string now = {};
    std::string durable = {};
    std::map<std::string, std::shared_ptr<Node>> names_now = {};
    std::map<std::string, std::shared_ptr<Node>> names_durable = {};
    std::map<const void*, int> locks = {};  // by who has it: SQLite's level
  };
  // What SQLite, or our own code, has open.
  struct OpenFile {
    UnsyncedDisk* disk = nullptr;
    std::shared_ptr<Node> node = {};
    std::shared_ptr<Node> folder = {};
    SyncOf kind = SyncOf::kFile;
    bool sync_folder = false;  // with the next sync
    int64_t life = 0;
  };

  // For the VFS; results are SQLite's codes.
  int OpenForSqlite(const std::string& path, int flags, OpenFile* file) ABSL_LOCKS_EXCLUDED(mu_);
  int ReadAt(const OpenFile& file, char* to, int64_t size, int64_t offset) ABSL_LOCKS_EXCLUDED(mu_);
  int WriteAt(const OpenFile& file, const char* from, int64_t size, int64_t offset) ABSL_LOCKS_EXCLUDED(mu_);
  int Truncate(const OpenFile& file, int64_t size) ABSL_LOCKS_EXCLUDED(mu_);
  int SyncFile(OpenFile& file) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t SizeOf(const OpenFile& file) ABSL_LOCKS_EXCLUDED(mu_);
  int Lock(const OpenFile& file, const void* owner, int level) ABSL_LOCKS_EXCLUDED(mu_);
  void Unlock(const OpenFile& file, const void* owner, int level) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsReserved(const OpenFile& file) ABSL_LOCKS_EXCLUDED(mu_);
  int Delete(const std::string& path, bool sync_folder) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class File;

  void CrashAt(std::mt19937_64* random) ABSL_LOCKS_EXCLUDED(mu_);
  static void ForgetLocks(Node& node);
  static void Revert(Node& node, std::mt19937_64* random);
  std::shared_ptr<Node> Find(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Node> FolderOf(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: it fails. True: it is done, or ignored.
  bool Sync(SyncOf kind, Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: there is no room for all of it.
  bool Grow(Node& node, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool alive(const OpenFile& file) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return file.life == life_; }
  void Register();
  void Unregister();

  const std::string name_;
  std::shared_ptr<void> vfs_;  // SQLite's view of this

  mutable absl::Mutex mu_;
  std::shared_ptr<Node> root_ ABSL_GUARDED_BY(mu_);
  std::set<SyncOf> ignored_ ABSL_GUARDED_BY(mu_);
  int64_t fail_sync_ ABSL_GUARDED_BY(mu_) = -1;
  int64_t free_bytes_ ABSL_GUARDED_BY(mu_) = -1;
  std::map<SyncOf, int64_t> syncs_ ABSL_GUARDED_BY(mu_);
  int64_t life_ ABSL_GUARDED_BY(mu_) = 0;  // rises with each crash
};

}  // namespace penstock::testing
