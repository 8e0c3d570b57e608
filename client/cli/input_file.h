#pragma once

// Files that are read in places: what nobody asks for is never in memory.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// An open file.
//
// Units:     bytes.
// Threads:   any method from any thread.
// Fails:     usage errors that name the path: it is no file, or ends before what is read.
class InputFile {
 public:
  static absl::StatusOr<std::shared_ptr<const InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened

  absl::Status Read(int64_t offset, std::span<char> into) const;

 private:
  InputFile(std::string path, int descriptor, int64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}

  const std::string path_;
  const int descriptor_;
  const int64_t size_;
};

// Some bytes of a file, or bytes in memory that were made of them.
class ByteRange {
 public:
  ByteRange(std::shared_ptr<const InputFile> file, int64_t offset, int64_t size)
      : file_(std::move(file)), offset_(offset), size_(size) {}
  ByteRange(std::shared_ptr<const InputFile> file, std::string bytes)
      : file_(std::move(file)), bytes_(std::move(bytes)), size_(static_cast<int64_t>(bytes_.size())) {}

  const std::string& path() const { return file_->path(); }
  int64_t size() const { return size_; }

  // Fails as InputFile's, also behind the end of the range.
  absl::Status Read(int64_t offset, std::span<char> into) const;
  absl::StatusOr<std::string> Read(int64_t offset, int64_t size) const;

 private:
  std::shared_ptr<const InputFile> file_;
  std::string bytes_;
  int64_t offset_ = -1;  // in the file; -1: the range is `bytes_`
  int64_t size_;
};

}  // namespace penstock
