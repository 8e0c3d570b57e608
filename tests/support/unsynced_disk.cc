#include "tests/support/unsynced_disk.h"

#include <sqlite3.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace penstock::testing {
namespace {

constexpr size_t kSectorBytes = 512;

std::string NextName() {
  static std::atomic<int> count{0};
  return "unsynced-" + std::to_string(++count);
}

std::vector<std::string> PartsOf(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    if (slash > at) parts.push_back(path.substr(at, slash - at));
    at = slash + 1;
  }
  return parts;
}

std::string LastOf(const std::string& path) { return PartsOf(path).back(); }

absl::Status Missing() { return absl::NotFoundError("no such file"); }
absl::Status DeadDisk() { return absl::InternalError("the machine is off"); }
absl::Status NoSpace() { return Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL", "write: no space left"); }
absl::Status FailedSync() { return absl::InternalError("sync: fault"); }

}  // namespace

// A file of our own code.
class UnsyncedDisk::File : public WritableFile {
 public:
  explicit File(OpenFile file) : file_(std::move(file)) {}

  absl::Status Append(std::string_view bytes) override {
    const int64_t end = file_.disk->SizeOf(file_);
    const int code = file_.disk->WriteAt(file_, bytes.data(), static_cast<int64_t>(bytes.size()), end);
    if (code == SQLITE_FULL) return NoSpace();
    return code == SQLITE_OK ? absl::OkStatus() : DeadDisk();
  }
  absl::Status Sync() override { return file_.disk->SyncFile(file_) == SQLITE_OK ? absl::OkStatus() : FailedSync(); }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  OpenFile file_;
};

UnsyncedDisk::UnsyncedDisk() : name_(NextName()) {
  {
    absl::MutexLock lock(&mu_);
    root_ = std::make_shared<Node>(Node{.folder = true});
  }
  Register();
}

UnsyncedDisk::~UnsyncedDisk() { Unregister(); }

void UnsyncedDisk::Ignore(SyncOf kind) {
  absl::MutexLock lock(&mu_);
  ignored_.insert(kind);
}

void UnsyncedDisk::FailSync(int64_t in) {
  absl::MutexLock lock(&mu_);
  fail_sync_ = in;
}

void UnsyncedDisk::SetFreeBytes(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  free_bytes_ = bytes;
}

int64_t UnsyncedDisk::free_bytes() const {
  absl::MutexLock lock(&mu_);
  return free_bytes_ < 0 ? INT64_MAX : free_bytes_;
}

int64_t UnsyncedDisk::syncs() const {
  absl::MutexLock lock(&mu_);
  int64_t all = 0;
  for (const auto& [kind, count] : syncs_) all += count;
  return all;
}

int64_t UnsyncedDisk::syncs(SyncOf kind) const {
  absl::MutexLock lock(&mu_);
  const auto found = syncs_.find(kind);
  return found == syncs_.end() ? 0 : found->second;
}

void UnsyncedDisk::AwaitSyncs(SyncOf kind, int64_t count) {
  const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const auto found = syncs_.find(kind);
    return found != syncs_.end() && found->second >= count;
  };
  absl::MutexLock lock(&mu_, absl::Condition(&enough));
}

void UnsyncedDisk::Flip(const std::string& path, size_t offset) {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<Node> node = Find(path);
  PENSTOCK_CHECK(node != nullptr && offset < node->now.size());
  node->now[offset] ^= 1;
  if (offset < node->durable.size()) node->durable[offset] ^= 1;
}

void UnsyncedDisk::Put(const std::string& path, const std::string& content) {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<Node> folder = FolderOf(path);
  PENSTOCK_CHECK(folder != nullptr);
  const auto node = std::make_shared<Node>(Node{.now = content, .durable = content});
  folder->names_now[LastOf(path)] = node;
  folder->names_durable[LastOf(path)] = node;
}

void UnsyncedDisk::EndProcess() {
  absl::MutexLock lock(&mu_);
  ++life_;
  ForgetLocks(*root_);
}

void UnsyncedDisk::ForgetLocks(Node& node) {
  node.locks.clear();
  for (const auto& [name, child] : node.names_now) ForgetLocks(*child);
}

void UnsyncedDisk::CrashAt(std::mt19937_64* random) {
  absl::MutexLock lock(&mu_);
  ++life_;
  fail_sync_ = -1;
  Revert(*root_, random);
}

void UnsyncedDisk::Revert(Node& node, std::mt19937_64* random) {
  const auto keep = [random] { return random != nullptr && ((*random)() & 1) != 0; };
  node.locks.clear();
  if (node.folder) {
    std::map<std::string, std::shared_ptr<Node>> names = node.names_durable;
    for (const auto& [name, child] : node.names_now) {
      if (!names.contains(name) && keep()) names[name] = child;
    }
    for (const auto& [name, child] : node.names_durable) {
      const auto now = node.names_now.find(name);
      if ((now == node.names_now.end() || now->second != child) && keep()) {
        if (now == node.names_now.end()) {
          names.erase(name);
        } else {
          names[name] = now->second;
        }
      }
    }
    node.names_now = node.names_durable = names;
    for (const auto& [name, child] : node.names_now) Revert(*child, random);
    return;
  }
  std::string content = node.durable;
  if (node.now.size() != content.size() && keep()) content.resize(node.now.size(), '\0');
  for (size_t at = 0; at < content.size(); at += kSectorBytes) {
    const size_t size = std::min({kSectorBytes, content.size() - at, node.now.size() - std::min(at, node.now.size())});
    if (size > 0 && content.compare(at, size, node.now, at, size) != 0 && keep()) {
      content.replace(at, size, node.now, at, size);
    }
  }
  node.now = node.durable = content;
}

std::shared_ptr<UnsyncedDisk::Node> UnsyncedDisk::Find(const std::string& path) const {
  std::shared_ptr<Node> node = root_;
  for (const std::string& part : PartsOf(path)) {
    const auto found = node->names_now.find(part);
    if (found == node->names_now.end()) return nullptr;
    node = found->second;
  }
  return node;
}

std::shared_ptr<UnsyncedDisk::Node> UnsyncedDisk::FolderOf(const std::string& path) const {
  return Find(path.substr(0, path.rfind('/')));
}

bool UnsyncedDisk::Sync(SyncOf kind, Node& node) {
  ++syncs_[kind];
  if (fail_sync_ == 0) return false;
  if (fail_sync_ > 0) --fail_sync_;
  if (ignored_.contains(kind)) return true;
  if (node.folder) {
    node.names_durable = node.names_now;
  } else {
    node.durable = node.now;
  }
  return true;
}

bool UnsyncedDisk::Grow(Node& node, size_t size) {
  if (size <= node.now.size()) return true;
  const auto more = static_cast<int64_t>(size - node.now.size());
  if (free_bytes_ >= 0 && more > free_bytes_) return false;
  if (free_bytes_ >= 0) free_bytes_ -= more;
  node.now.resize(size, '\0');
  return true;
}

absl::StatusOr<std::unique_ptr<WritableFile>> UnsyncedDisk::Create(const std::string& path) {
  absl::MutexLock lock(&mu_);
  OpenFile file{.disk = this, .folder = FolderOf(path), .life = life_};
  if (file.folder == nullptr) return Missing();
  std::shared_ptr<Node>& node = file.folder->names_now[LastOf(path)];
  if (node == nullptr) node = std::make_shared<Node>();
  node->now.clear();
  file.node = node;
  return std::make_unique<File>(std::move(file));
}

absl::Status UnsyncedDisk::ReadInto(const std::string& path, const Arrived& /*arrived*/, std::string* bytes) {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return Missing();
  *bytes = node->now;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> UnsyncedDisk::List(const std::string& directory) {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<Node> node = Find(directory);
  if (node == nullptr) return Missing();
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names_now) names.push_back(name);
  return names;
}

absl::Status UnsyncedDisk::CreateDirectories(const std::string& directory) {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<Node> node = root_;
  for (const std::string& part : PartsOf(directory)) {
    std::shared_ptr<Node>& child = node->names_now[part];
    if (child == nullptr) {
      child = std::make_shared<Node>(Node{.folder = true});
      const std::shared_ptr<Node> made = child;
      if (!Sync(SyncOf::kFolder, *node)) return FailedSync();
      node = made;
      continue;
    }
    node = child;
  }
  return absl::OkStatus();
}

absl::Status UnsyncedDisk::Rename(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<Node> source = FolderOf(from);
  const std::shared_ptr<Node> target = FolderOf(to);
  if (source == nullptr || target == nullptr || !source->names_now.contains(LastOf(from))) return Missing();
  target->names_now[LastOf(to)] = source->names_now[LastOf(from)];
  source->names_now.erase(LastOf(from));
  return Sync(SyncOf::kFolder, *target) ? absl::OkStatus() : FailedSync();
}

absl::Status UnsyncedDisk::RemoveAll(const std::string& path) {
  absl::MutexLock lock(&mu_);
  if (const std::shared_ptr<Node> folder = FolderOf(path); folder != nullptr) folder->names_now.erase(LastOf(path));
  return absl::OkStatus();
}

bool UnsyncedDisk::Exists(const std::string& path) {
  absl::MutexLock lock(&mu_);
  return Find(path) != nullptr;
}

absl::StatusOr<FileInfo> UnsyncedDisk::Info(const std::string& path) {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return Missing();
  return FileInfo{.bytes = static_cast<int64_t>(node->now.size()), .plain = !node->folder};
}

int UnsyncedDisk::OpenForSqlite(const std::string& path, int flags, OpenFile* file) {
  absl::MutexLock lock(&mu_);
  file->disk = this;
  file->life = life_;
  file->folder = FolderOf(path);
  if (file->folder == nullptr) return SQLITE_CANTOPEN;
  const bool log = (flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL)) != 0;
  file->kind = log ? SyncOf::kLog : SyncOf::kDatabase;
  std::shared_ptr<Node>& node = file->folder->names_now[LastOf(path)];
  if (node == nullptr) {
    if ((flags & SQLITE_OPEN_CREATE) == 0) {
      file->folder->names_now.erase(LastOf(path));
      return SQLITE_CANTOPEN;
    }
    node = std::make_shared<Node>();
  }
  file->sync_folder = log && (flags & SQLITE_OPEN_CREATE) != 0;  // as SQLite's own VFS for Unix
  file->node = node;
  return SQLITE_OK;
}

int UnsyncedDisk::ReadAt(const OpenFile& file, char* to, int64_t size, int64_t offset) {
  absl::MutexLock lock(&mu_);
  if (!alive(file)) return SQLITE_IOERR_READ;
  const std::string& content = file.node->now;
  const int64_t there = std::clamp<int64_t>(static_cast<int64_t>(content.size()) - offset, 0, size);
  std::copy_n(content.data() + std::min<int64_t>(offset, static_cast<int64_t>(content.size())), there, to);
  std::fill_n(to + there, size - there, '\0');
  return there == size ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

int UnsyncedDisk::WriteAt(const OpenFile& file, const char* from, int64_t size, int64_t offset) {
  absl::MutexLock lock(&mu_);
  if (!alive(file)) return SQLITE_IOERR_WRITE;
  if (!Grow(*file.node, static_cast<size_t>(offset + size))) return SQLITE_FULL;
  std::copy_n(from, size, file.node->now.data() + offset);
  return SQLITE_OK;
}

int UnsyncedDisk::Truncate(const OpenFile& file, int64_t size) {
  absl::MutexLock lock(&mu_);
  if (!alive(file)) return SQLITE_IOERR_TRUNCATE;
  file.node->now.resize(static_cast<size_t>(size), '\0');
  return SQLITE_OK;
}

int UnsyncedDisk::SyncFile(OpenFile& file) {
  absl::MutexLock lock(&mu_);
  if (!alive(file) || !Sync(file.kind, *file.node)) return SQLITE_IOERR_FSYNC;
  if (std::exchange(file.sync_folder, false) && !Sync(SyncOf::kFolder, *file.folder)) return SQLITE_IOERR_DIR_FSYNC;
  return SQLITE_OK;
}

int64_t UnsyncedDisk::SizeOf(const OpenFile& file) {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(file.node->now.size());
}

int UnsyncedDisk::Lock(const OpenFile& file, const void* owner, int level) {
  absl::MutexLock lock(&mu_);
  if (!alive(file)) return SQLITE_IOERR_LOCK;
  for (const auto& [other, has] : file.node->locks) {
    if (other == owner) continue;
    if (has >= SQLITE_LOCK_PENDING || (level >= SQLITE_LOCK_RESERVED && has >= SQLITE_LOCK_RESERVED))
      return SQLITE_BUSY;
    if (level == SQLITE_LOCK_EXCLUSIVE && has >= SQLITE_LOCK_SHARED) return SQLITE_BUSY;
  }
  int& has = file.node->locks[owner];
  has = std::max(has, level);
  return SQLITE_OK;
}

void UnsyncedDisk::Unlock(const OpenFile& file, const void* owner, int level) {
  absl::MutexLock lock(&mu_);
  if (!alive(file)) return;
  if (level == SQLITE_LOCK_NONE) {
    file.node->locks.erase(owner);
  } else {
    file.node->locks[owner] = level;
  }
}

bool UnsyncedDisk::IsReserved(const OpenFile& file) {
  absl::MutexLock lock(&mu_);
  return std::any_of(file.node->locks.begin(), file.node->locks.end(),
                     [](const auto& entry) { return entry.second >= SQLITE_LOCK_RESERVED; });
}

int UnsyncedDisk::Delete(const std::string& path, bool sync_folder) {
  absl::MutexLock lock(&mu_);
  const std::shared_ptr<Node> folder = FolderOf(path);
  if (folder == nullptr || folder->names_now.erase(LastOf(path)) == 0) return SQLITE_IOERR_DELETE_NOENT;
  return !sync_folder || Sync(SyncOf::kFolder, *folder) ? SQLITE_OK : SQLITE_IOERR_DIR_FSYNC;
}

}  // namespace penstock::testing
