#include "engine/base/read_to_end.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace penstock {

absl::StatusOr<std::string> ReadToEnd(const std::string& path, int64_t most) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return absl::UnknownError(absl::StrCat("open: ", std::strerror(errno)));
  std::string bytes;
  const size_t end = static_cast<size_t>(most) + 1;
  while (true) {
    const size_t before = bytes.size();
    bytes.resize(std::min(end, before + std::clamp<size_t>(before, 64 << 10, 1 << 30)));
    const ssize_t got = ::read(descriptor, bytes.data() + before, bytes.size() - before);
    const int error = errno;
    bytes.resize(before + (got > 0 ? static_cast<size_t>(got) : 0));
    if ((got > 0 && bytes.size() < end) || (got < 0 && error == EINTR)) continue;
    ::close(descriptor);
    if (bytes.size() == end) return absl::UnknownError(absl::StrCat("read: it has more than ", most, " bytes"));
    if (got < 0) return absl::UnknownError(absl::StrCat("read: ", std::strerror(error)));
    return bytes;
  }
}

}  // namespace penstock
