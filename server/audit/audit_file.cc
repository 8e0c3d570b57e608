#include "server/audit/audit_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

constexpr mode_t kMode = 0600;

absl::Status Failed(const char* what, int error) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return absl::InternalError(message);
  return Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL", message);
}

// Without waiting, so that a pipe that nobody reads holds up neither the start nor the end.
int OpenToAppend(const std::string& path) {
  return ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, kMode);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditFile>> AuditFile::Open(const Options& options) {
  const auto refused = [&](int error) {
    return InvalidField("--audit-log", absl::StrCat("must be a file that can be written (", std::strerror(error), ")"),
                        options.path);
  };
  const int descriptor = OpenToAppend(options.path);
  if (descriptor < 0) return refused(errno);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    const int error = errno;
    ::close(descriptor);
    return refused(error);
  }
  std::unique_ptr<AuditFile> file(new AuditFile(options, descriptor, S_ISREG(info.st_mode), info.st_size));
  if (!file->plain_) return file;
  if ((info.st_mode & 0777) != kMode && ::fchmod(descriptor, kMode) != 0) return refused(errno);
  // An earlier life may have been cut off within a line.
  char last = '\n';
  file->torn_ = info.st_size > 0 && ::pread(descriptor, &last, 1, info.st_size - 1) == 1 && last != '\n';
  return file;
}

AuditFile::~AuditFile() { ::close(descriptor_); }

absl::Status AuditFile::Append(std::string_view line) {
  if (plain_ && size_ > 0 && size_ + static_cast<int64_t>(line.size()) > rotate_at_) {
    if (const absl::Status rotated = Rotate(); !rotated.ok()) {
      rotate_at_ = size_ + options_.max_bytes;
      LogWarning("the audit log can't rotate, its file grows", {{"why", std::string(rotated.message())}});
    }
  }
  std::string text = torn_ ? "\n" : "";
  text.append(line);
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(descriptor_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const absl::Status failed = Failed("the write", errno);
      const bool cut = done == 0 || (plain_ && ::ftruncate(descriptor_, size_) == 0);  // which needs no room
      torn_ = torn_ || !cut;
      return failed;
    }
    done += static_cast<size_t>(wrote);
  }
  torn_ = false;
  size_ += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

absl::Status AuditFile::Rotate() {
  const auto name = [this](int number) {
    return number == 0 ? options_.path : absl::StrCat(options_.path, ".", number);
  };
  if (options_.old_files == 0) {
    if (::ftruncate(descriptor_, 0) != 0) return Failed("the rotation", errno);
    size_ = 0;
    return absl::OkStatus();
  }
  for (int number = options_.old_files; number > 0; --number) {
    if (std::rename(name(number - 1).c_str(), name(number).c_str()) != 0 && errno != ENOENT) {
      return Failed("the rotation", errno);
    }
  }
  const int next = OpenToAppend(options_.path);
  if (next < 0) return Failed("the rotation", errno);
  ::close(std::exchange(descriptor_, next));
  size_ = 0;
  rotate_at_ = options_.max_bytes;
  return absl::OkStatus();
}

}  // namespace penstock
