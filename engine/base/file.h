#pragma once

// Files, injected: what is written durably goes through FileSystem, so that tests can fill the disk or tear a write.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// A file that is being written. The destructor closes it; data is durable only after Sync().
//
// Fails:     RESOURCE_EXHAUSTED / STORAGE_FULL when the disk or quota is full; INTERNAL for other faults of the
//            machine.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(std::string_view bytes) = 0;
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// What is known of a file without reading it.
struct FileInfo {
  int64_t bytes = 0;
  int64_t changed_unix_ns = 0;
  bool plain = false;  // a file itself: no link, folder or device
};

// The file operations that durable state needs.
//
// Threads:   any method from any thread.
// Fails:     NOT_FOUND for a missing path; INVALID_ARGUMENT where Read() finds no regular file; otherwise as WritableFile. Messages name the operation, never the path: they
//            may reach a client. The path is in the value "path", which the edges drop.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  absl::StatusOr<std::string> Read(const std::string& path) {
    std::string bytes;
    const absl::Status status = ReadInto(path, nullptr, &bytes);
    if (!status.ok()) return status;
    return bytes;
  }
  // The same into an empty string of the caller's. `arrived` may be told of all bytes that have come so far, so that work
  // on them begins: they keep their place in `bytes`, also where it fails and where `bytes` is moved. Empty: nobody is.
  using Arrived = std::function<void(std::string_view so_far)>;
  virtual absl::Status ReadInto(const std::string& path, const Arrived& arrived, std::string* bytes) = 0;
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;  // names, sorted
  virtual absl::Status CreateDirectories(const std::string& directory) = 0;  // those above it too; syncs their parents
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;  // atomic; syncs the parent
  virtual absl::Status RemoveAll(const std::string& path) = 0;                      // missing is OK
  virtual bool Exists(const std::string& path) = 0;
  virtual absl::StatusOr<FileInfo> Info(const std::string& path) = 0;  // of a link: of the link itself
};

// The machine's files. One instance, never destroyed.
FileSystem* RealFileSystem();

}  // namespace penstock
