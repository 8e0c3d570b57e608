#include "client/cli/input_bytes.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status CannotRead(const std::string& path, const char* operation) {
  return UsageError(path, absl::StrCat("cannot be read (", operation, ": ", std::strerror(errno), ")"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<InputBytes>> InputBytes::Open(const std::string& path, std::istream& in,
                                                             const StopSignal& stop) {
  if (path == "-") return std::unique_ptr<InputBytes>(new InputBytes("stdin", -1, in, stop));
  // A pipe without a writer is open at once: the wait for its bytes is one that can be stopped.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return CannotRead(path, "open");
  return std::unique_ptr<InputBytes>(new InputBytes(path, descriptor, in, stop));
}

InputBytes::~InputBytes() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::Status InputBytes::Read(uint64_t size, std::string* bytes) {
  constexpr uint64_t kLeast = 64 << 10;
  constexpr uint64_t kMost = 1 << 30;
  while (bytes->size() < size) {
    const uint64_t before = bytes->size();
    bytes->resize(std::min(size, before + std::clamp(before, kLeast, kMost)));
    const absl::StatusOr<int64_t> got = ReadSome(bytes->data() + before, static_cast<int64_t>(bytes->size() - before));
    bytes->resize(before + static_cast<uint64_t>(got.value_or(0)));
    PENSTOCK_RETURN_IF_ERROR(got.status());
    if (*got == 0) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> InputBytes::ReadSome(char* into, int64_t most) {
  const auto stopped = [&] {
    return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "interrupted while it read " + name_);
  };
  if (descriptor_ < 0) {
    const int64_t got = in_.rdbuf()->sgetn(into, most);
    if (stop_.stopped()) return stopped();
    return got;
  }
  while (true) {
    if (!stop_.Wait(descriptor_, POLLIN)) return stopped();
    const ssize_t got = ::read(descriptor_, into, static_cast<size_t>(most));
    if (got >= 0) return got;
    if (errno != EINTR && errno != EAGAIN) return CannotRead(name_, "read");
  }
}

}  // namespace penstock
