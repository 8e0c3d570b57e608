#include "client/cli/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status CannotRead(const std::string& path, absl::string_view why) {
  return UsageError(path, absl::StrCat("cannot be read (", why, ")"));
}

absl::Status CheckInside(const std::string& path, int64_t offset, int64_t wanted, int64_t size) {
  if (offset >= 0 && wanted >= 0 && offset <= size && wanted <= size - offset) return absl::OkStatus();
  return UsageError(path,
                    absl::StrCat("is cut off or damaged: ", wanted, " bytes at ", offset, " do not fit into ", size));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const InputFile>> InputFile::Open(const std::string& path) {
  // A pipe without a writer must not block here: it is refused below.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return CannotRead(path, absl::StrCat("open: ", std::strerror(errno)));
  struct stat info = {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return CannotRead(path, "it is no plain file, and is read in places");
  }
  return std::shared_ptr<const InputFile>(new InputFile(path, descriptor, info.st_size));
}

InputFile::~InputFile() { ::close(descriptor_); }

absl::Status InputFile::Read(int64_t offset, std::span<char> into) const {
  PENSTOCK_RETURN_IF_ERROR(CheckInside(path_, offset, static_cast<int64_t>(into.size()), size_));
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor_, into.data(), into.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return CannotRead(path_, absl::StrCat("read: ", std::strerror(errno)));
    if (got == 0) return CannotRead(path_, absl::StrCat("it has become shorter: it ends at ", offset));
    into = into.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status ByteRange::Read(int64_t offset, std::span<char> into) const {
  PENSTOCK_RETURN_IF_ERROR(CheckInside(path(), offset, static_cast<int64_t>(into.size()), size_));
  if (offset_ >= 0) return file_->Read(offset_ + offset, into);
  if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ByteRange::Read(int64_t offset, int64_t size) const {
  PENSTOCK_RETURN_IF_ERROR(CheckInside(path(), offset, size, size_));
  std::string bytes(static_cast<size_t>(size), '\0');
  PENSTOCK_RETURN_IF_ERROR(Read(offset, std::span<char>(bytes)));
  return bytes;
}

}  // namespace penstock
