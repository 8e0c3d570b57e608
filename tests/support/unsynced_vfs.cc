// The unsynced disk as SQLite sees it: https://www.sqlite.org/vfs.html. Without shared memory, which an exclusive lock
// makes needless.

#include <sqlite3.h>

#include <new>
#include <string>

#include "engine/base/check.h"
#include "tests/support/unsynced_disk.h"

namespace penstock::testing {
namespace {

struct VfsFile {
  sqlite3_file base = {};  // first: SQLite knows this part
  UnsyncedDisk::OpenFile* open = nullptr;
};

UnsyncedDisk::OpenFile& OpenOf(sqlite3_file* file) { return *reinterpret_cast<VfsFile*>(file)->open; }
UnsyncedDisk* DiskOf(sqlite3_vfs* vfs) { return static_cast<UnsyncedDisk*>(vfs->pAppData); }

int VfsClose(sqlite3_file* file) {
  OpenOf(file).disk->Unlock(OpenOf(file), file, SQLITE_LOCK_NONE);
  delete reinterpret_cast<VfsFile*>(file)->open;
  return SQLITE_OK;
}
int VfsRead(sqlite3_file* file, void* to, int size, sqlite3_int64 offset) {
  return OpenOf(file).disk->ReadAt(OpenOf(file), static_cast<char*>(to), size, offset);
}
int VfsWrite(sqlite3_file* file, const void* from, int size, sqlite3_int64 offset) {
  return OpenOf(file).disk->WriteAt(OpenOf(file), static_cast<const char*>(from), size, offset);
}
int VfsTruncate(sqlite3_file* file, sqlite3_int64 size) { return OpenOf(file).disk->Truncate(OpenOf(file), size); }
int VfsSync(sqlite3_file* file, int) { return OpenOf(file).disk->SyncFile(OpenOf(file)); }
int VfsFileSize(sqlite3_file* file, sqlite3_int64* size) {
  *size = OpenOf(file).disk->SizeOf(OpenOf(file));
  return SQLITE_OK;
}
int VfsLock(sqlite3_file* file, int level) { return OpenOf(file).disk->Lock(OpenOf(file), file, level); }
int VfsUnlock(sqlite3_file* file, int level) {
  OpenOf(file).disk->Unlock(OpenOf(file), file, level);
  return SQLITE_OK;
}
int VfsCheckReservedLock(sqlite3_file* file, int* reserved) {
  *reserved = OpenOf(file).disk->IsReserved(OpenOf(file)) ? 1 : 0;
  return SQLITE_OK;
}
int VfsFileControl(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int VfsSectorSize(sqlite3_file*) { return 512; }
int VfsCharacteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

constexpr sqlite3_io_methods kMethods = {.iVersion = 1,
                                         .xClose = VfsClose,
                                         .xRead = VfsRead,
                                         .xWrite = VfsWrite,
                                         .xTruncate = VfsTruncate,
                                         .xSync = VfsSync,
                                         .xFileSize = VfsFileSize,
                                         .xLock = VfsLock,
                                         .xUnlock = VfsUnlock,
                                         .xCheckReservedLock = VfsCheckReservedLock,
                                         .xFileControl = VfsFileControl,
                                         .xSectorSize = VfsSectorSize,
                                         .xDeviceCharacteristics = VfsCharacteristics};

int VfsOpen(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* given_flags) {
  auto* opened = new (file) VfsFile;
  if (path == nullptr) return SQLITE_CANTOPEN;  // a temporary file: the journal keeps these in memory
  auto* open = new UnsyncedDisk::OpenFile;
  if (const int code = DiskOf(vfs)->OpenForSqlite(path, flags, open); code != SQLITE_OK) {
    delete open;
    return code;
  }
  opened->open = open;
  opened->base.pMethods = &kMethods;
  if (given_flags != nullptr) *given_flags = flags;
  return SQLITE_OK;
}
int VfsDelete(sqlite3_vfs* vfs, const char* path, int sync_folder) {
  return DiskOf(vfs)->Delete(path, sync_folder != 0);
}
int VfsAccess(sqlite3_vfs* vfs, const char* path, int, int* result) {
  *result = DiskOf(vfs)->Exists(path) ? 1 : 0;
  return SQLITE_OK;
}
int VfsFullPathname(sqlite3_vfs*, const char* path, int size, char* to) {
  sqlite3_snprintf(size, to, "%s", path);
  return SQLITE_OK;
}

}  // namespace

void UnsyncedDisk::Register() {
  sqlite3_initialize();
  auto vfs = std::make_shared<sqlite3_vfs>(*sqlite3_vfs_find(nullptr));  // time and randomness are the machine's
  vfs->iVersion = 1;
  vfs->szOsFile = sizeof(VfsFile);
  vfs->pNext = nullptr;
  vfs->zName = name_.c_str();
  vfs->pAppData = this;
  vfs->xOpen = VfsOpen;
  vfs->xDelete = VfsDelete;
  vfs->xAccess = VfsAccess;
  vfs->xFullPathname = VfsFullPathname;
  PENSTOCK_CHECK(sqlite3_vfs_register(vfs.get(), /*makeDflt=*/0) == SQLITE_OK);
  vfs_ = vfs;
}

void UnsyncedDisk::Unregister() { sqlite3_vfs_unregister(static_cast<sqlite3_vfs*>(vfs_.get())); }

}  // namespace penstock::testing
