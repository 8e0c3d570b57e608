#pragma once

// A disk that fills up, fails and loses power, around a real one.

#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/file.h"

namespace penstock::testing {

// Passes everything on, until a switch says otherwise. A switch counts operations down and fails the one that reaches 0
// and all after it, until it is set again; negative means never.
class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem* files) : files_(files) {}

  // Bytes that still fit on the disk.
  void SetFreeBytes(int64_t bytes) {
    absl::MutexLock lock(&mu_);
    free_bytes_ = bytes;
  }
  // The sync that fails, counted from now: 0 is the next.
  void FailSync(int64_t in) {
    absl::MutexLock lock(&mu_);
    fail_sync_ = in;
  }
  // The rename that fails: with nothing done, or done and not made durable, as when the sync of the folder fails.
  enum class RenameFault { kNotDone, kNotDurable };
  void FailRename(int64_t in, RenameFault fault = RenameFault::kNotDone) {
    absl::MutexLock lock(&mu_);
    fail_rename_ = in;
    rename_fault_ = fault;
  }
  // The next call of that method, "Create", "Read" or "RemoveAll", throws, as where memory is short.
  void ThrowIn(const std::string& method) {
    absl::MutexLock lock(&mu_);
    throw_in_ = method;
  }
  // Reads of files fail whose paths have this part; empty: none do.
  void FailReadsOf(const std::string& part) {
    absl::MutexLock lock(&mu_);
    fail_reads_of_ = part;
  }
  // The process dies before this change of the disk, counted from now: it and all later ones never happen.
  void DieBeforeChange(int64_t in) {
    absl::MutexLock lock(&mu_);
    die_ = in;
  }
  // Writes to files wait at their start until ResumeWrites().
  void HoldWrites() {
    absl::MutexLock lock(&mu_);
    writes_held_ = true;
  }
  void ResumeWrites() {
    absl::MutexLock lock(&mu_);
    writes_held_ = false;
  }
  // Waits until a write stands still.
  void AwaitHeldWrite() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&write_stands_));
  }
  int64_t changes() const {
    absl::MutexLock lock(&mu_);
    return changes_;
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (absl::Status status = Change(); !status.ok()) return status;
    MayThrow("Create");
    absl::StatusOr<std::unique_ptr<WritableFile>> file = files_->Create(path);
    if (!file.ok()) return file;
    return std::make_unique<File>(this, *std::move(file));
  }
  absl::Status ReadInto(const std::string& path, const Arrived& arrived, std::string* bytes) override {
    MayThrow("Read");
    {
      absl::MutexLock lock(&mu_);
      if (!fail_reads_of_.empty() && path.find(fail_reads_of_) != std::string::npos) return Fault("read");
    }
    return files_->ReadInto(path, arrived, bytes);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return files_->List(directory);
  }
  absl::Status CreateDirectories(const std::string& directory) override {
    if (absl::Status status = Change(); !status.ok()) return status;
    return files_->CreateDirectories(directory);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (absl::Status status = Change(); !status.ok()) return status;
    if (!Fires(&fail_rename_)) return files_->Rename(from, to);
    if (rename_fault() == RenameFault::kNotDurable) {
      if (absl::Status renamed = files_->Rename(from, to); !renamed.ok()) return renamed;
    }
    return Fault("rename");
  }
  absl::Status RemoveAll(const std::string& path) override {
    if (absl::Status status = Change(); !status.ok()) return status;
    MayThrow("RemoveAll");
    return files_->RemoveAll(path);
  }
  bool Exists(const std::string& path) override { return files_->Exists(path); }
  absl::StatusOr<FileInfo> Info(const std::string& path) override { return files_->Info(path); }

 private:
  void MayThrow(std::string_view method) {
    absl::MutexLock lock(&mu_);
    if (throw_in_ != method) return;
    throw_in_.clear();
    throw std::bad_alloc();
  }

  void MayHold() {
    const auto go = [this] {
      mu_.AssertReaderHeld();
      return !writes_held_;
    };
    absl::MutexLock lock(&mu_);
    write_stands_ = writes_held_;
    mu_.Await(absl::Condition(&go));
    write_stands_ = false;
  }

  class File : public WritableFile {
   public:
    File(FaultyFileSystem* system, std::unique_ptr<WritableFile> file) : system_(system), file_(std::move(file)) {}
    absl::Status Append(std::string_view bytes) override {
      system_->MayHold();
      if (absl::Status status = system_->Change(); !status.ok()) return status;
      const int64_t fits = system_->Take(static_cast<int64_t>(bytes.size()));
      absl::Status written = file_->Append(bytes.substr(0, static_cast<size_t>(fits)));  // torn
      if (!written.ok() || fits == static_cast<int64_t>(bytes.size())) return written;
      return Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL", "write: no space left");
    }
    absl::Status Sync() override {
      if (absl::Status status = system_->Change(); !status.ok()) return status;
      return system_->Fires(&system_->fail_sync_) ? Fault("sync") : file_->Sync();
    }
    absl::Status Close() override { return file_->Close(); }

   private:
    FaultyFileSystem* const system_;
    const std::unique_ptr<WritableFile> file_;
  };

  static absl::Status Fault(std::string_view what) { return absl::InternalError(std::string(what) + ": fault"); }

  // Counts a change of the disk, or says that there will be no more.
  absl::Status Change() {
    absl::MutexLock lock(&mu_);
    if (die_ == 0) return absl::InternalError("the process is dead");
    if (die_ > 0) --die_;
    ++changes_;
    return absl::OkStatus();
  }
  bool Fires(int64_t* countdown) {
    absl::MutexLock lock(&mu_);
    if (*countdown > 0)
      --*countdown;
    else if (*countdown == 0)
      return true;
    return false;
  }
  RenameFault rename_fault() const {
    absl::MutexLock lock(&mu_);
    return rename_fault_;
  }
  int64_t Take(int64_t bytes) {
    absl::MutexLock lock(&mu_);
    if (free_bytes_ < 0) return bytes;
    const int64_t taken = std::min(bytes, free_bytes_);
    free_bytes_ -= taken;
    return taken;
  }

  FileSystem* const files_;
  mutable absl::Mutex mu_;
  int64_t free_bytes_ = -1;
  int64_t fail_sync_ = -1;
  int64_t fail_rename_ = -1;
  RenameFault rename_fault_ = RenameFault::kNotDone;
  int64_t die_ = -1;
  std::string throw_in_;
  std::string fail_reads_of_;
  bool writes_held_ = false;
  bool write_stands_ = false;
  int64_t changes_ = 0;
};

}  // namespace penstock::testing
