#include "engine/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr size_t kReadBytes = 256 << 10;  // at a time: stays in a core's cache

absl::Status FromErrno(std::string_view operation, const std::string& path, int error) {
  const std::string message =
      absl::StrCat(absl::string_view(operation.data(), operation.size()), ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL", message).With("path", path);
  }
  if (error == EMFILE || error == ENFILE) {
    return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", absl::StrCat(message, ": no descriptor is left"))
        .With("path", path);
  }
  const absl::StatusCode code = error == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kInternal;
  return WithValue(absl::Status(code, message), "path", path);
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixWritableFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  absl::Status Append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), std::min<size_t>(bytes.size(), 1 << 30));
      if (written < 0) {
        if (errno == EINTR) continue;
        return FromErrno("write", path_, errno);
      }
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    return ::fdatasync(descriptor_) == 0 ? absl::OkStatus() : FromErrno("sync", path_, errno);
  }

  absl::Status Close() override {
    const int result = ::close(std::exchange(descriptor_, -1));
    return result == 0 ? absl::OkStatus() : FromErrno("close", path_, errno);
  }

 private:
  int descriptor_;
  const std::string path_;
};

absl::Status SyncDirectory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FromErrno("open directory", path, errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  return result == 0 ? absl::OkStatus() : FromErrno("sync directory", path, error);
}

class PosixFileSystem : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    // A pipe that nobody reads fails instead of waiting.
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0600);
    if (descriptor < 0) return FromErrno("create", path, errno);
    return std::make_unique<PosixWritableFile>(descriptor, path);
  }

  absl::Status ReadInto(const std::string& path, const Arrived& arrived, std::string* bytes) override {
    // Of a pipe that nobody writes, an open would wait.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) return FromErrno("open", path, errno);
    const absl::Cleanup close = [descriptor] { ::close(descriptor); };
    struct stat info;
    if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
      return WithValue(absl::InvalidArgumentError("read: it is no regular file"), "path", path);
    }
    // By way of a small buffer: a string that is made larger first is written twice, and its pages are as dear as the file.
    const auto size = static_cast<size_t>(info.st_size);
    const size_t piece = std::min(size, kReadBytes);
    const auto buffer = std::make_unique_for_overwrite<char[]>(piece);
    bytes->reserve(std::max<size_t>(size, 64));  // never within the string itself, which moves with it
    while (bytes->size() < size) {
      const ssize_t got = ::read(descriptor, buffer.get(), std::min(size - bytes->size(), piece));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return FromErrno("read", path, errno);
      if (got == 0) break;
      bytes->append(buffer.get(), static_cast<size_t>(got));
      if (arrived) arrived(*bytes);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    if (error) return FromErrno("list", directory, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status CreateDirectories(const std::string& directory) override {
    std::error_code error;
    const std::filesystem::path path(directory);
    if (path.empty() || std::filesystem::is_directory(path, error)) return absl::OkStatus();
    const std::string above = path.parent_path().string();
    if (path.filename().empty()) return CreateDirectories(above);  // a slash at the end
    PENSTOCK_RETURN_IF_ERROR(CreateDirectories(above));
    if (!std::filesystem::create_directory(path, error) && error) {
      return FromErrno("create directory", directory, error.value());
    }
    return SyncDirectory(above.empty() ? "." : above);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return FromErrno("rename", to, errno);
    return SyncDirectory(std::filesystem::path(to).parent_path().string());
  }

  absl::Status RemoveAll(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return error ? FromErrno("remove", path, error.value()) : absl::OkStatus();
  }

  bool Exists(const std::string& path) override {
    std::error_code error;
    return std::filesystem::exists(path, error);
  }

  absl::StatusOr<FileInfo> Info(const std::string& path) override {
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0) return FromErrno("stat", path, errno);
    const auto nanos = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
    // The time of content can be set at will, that of the change of a file's data or place can't.
    return FileInfo{.bytes = info.st_size,
                    .changed_unix_ns = std::max(nanos(info.st_mtim), nanos(info.st_ctim)),
                    .plain = S_ISREG(info.st_mode)};
  }
};

}  // namespace

FileSystem* RealFileSystem() {
  static PosixFileSystem* files = new PosixFileSystem;
  return files;
}

}  // namespace penstock
