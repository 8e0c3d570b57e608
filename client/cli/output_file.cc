#include "client/cli/output_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int kMaxParts = 1000;              // of commands that were killed, or that write to the same file now
constexpr int kReaderPollMilliseconds = 20;  // nothing tells that a pipe's reader has come

}  // namespace

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!part_.empty()) ::unlink(part_.c_str());
}

absl::Status OutputFile::Open() {
  if (descriptor_ >= 0 || path_ == "-") return absl::OkStatus();
  std::error_code unknown;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path_, unknown);
  target_ = unknown ? path_ : target.string();
  struct stat old;
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  const bool replaced = !exists || S_ISREG(old.st_mode);
  const int flags = O_WRONLY | O_CLOEXEC | O_NONBLOCK | (replaced ? O_CREAT | O_EXCL : 0);
  std::string opened = target_;
  for (int number = 1; descriptor_ < 0; ++number) {
    if (replaced) opened = absl::StrCat(target_, ".", number, ".part");
    descriptor_ = ::open(opened.c_str(), flags, 0666);
    if (descriptor_ >= 0 || (replaced && errno == EEXIST && number < kMaxParts)) continue;
    const bool no_reader = errno == ENXIO && exists && S_ISFIFO(old.st_mode);
    if (!no_reader) return Failed(errno);
    if (!stop_.Wait(-1, 0, kReaderPollMilliseconds)) return Stopped();
  }
  if (replaced) part_ = opened;
  if (replaced && exists && ::fchmod(descriptor_, old.st_mode & 07777) != 0) return Failed(errno);
  return absl::OkStatus();
}

absl::Status OutputFile::Append(std::string_view bytes) {
  if (path_ == "-") {
    out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return out_ ? absl::OkStatus() : Failed(errno);
  }
  PENSTOCK_RETURN_IF_ERROR(Open());
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min<size_t>(bytes.size(), 1 << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      if (!stop_.Wait(descriptor_, POLLOUT)) return Stopped();
      continue;
    }
    if (written < 0) return Failed(errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (path_ == "-") return out_.flush() ? absl::OkStatus() : Failed(errno);
  PENSTOCK_RETURN_IF_ERROR(Open());
  if (!part_.empty() && ::fsync(descriptor_) != 0) return Failed(errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) return Failed(errno);
  if (!part_.empty() && std::rename(part_.c_str(), target_.c_str()) != 0) return Failed(errno);
  part_.clear();
  return absl::OkStatus();
}

absl::Status OutputFile::Stopped() const {
  return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "interrupted while it wrote " + path_);
}

absl::Status OutputFile::Failed(int error) const {
  return Error(absl::StatusCode::kInternal, "OUTPUT_NOT_WRITTEN",
               (path_ == "-" ? "stdout" : path_) + ": cannot be written: " + std::strerror(error))
      .With("file", path_);
}

}  // namespace penstock
