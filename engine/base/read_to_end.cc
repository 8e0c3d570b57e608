#include "engine/base/read_to_end.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace penstock {

absl::StatusOr<std::string> ReadToEnd(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return absl::UnknownError(absl::StrCat("open: ", std::strerror(errno)));
  std::string bytes;
  while (true) {
    const size_t before = bytes.size();
    bytes.resize(before + std::clamp<size_t>(before, 64 << 10, 1 << 30));
    const ssize_t got = ::read(descriptor, bytes.data() + before, bytes.size() - before);
    const int error = errno;
    bytes.resize(before + (got > 0 ? static_cast<size_t>(got) : 0));
    if (got > 0 || (got < 0 && error == EINTR)) continue;
    ::close(descriptor);
    if (got < 0) return absl::UnknownError(absl::StrCat("read: ", std::strerror(error)));
    return bytes;
  }
}

}  // namespace penstock
