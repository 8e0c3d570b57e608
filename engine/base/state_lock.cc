#include "engine/base/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/error.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Take(const std::string& state_dir) {
  const std::string path = state_dir + "/lock";
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "STATE_IN_USE",
                 std::string("the state folder can't be locked: ") + std::strerror(errno))
        .With("path", path);
  }
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor);
    return Error(absl::StatusCode::kFailedPrecondition, "STATE_IN_USE",
                 "another daemon uses the same state folder; give this one a --state-dir of its own")
        .With("path", path);
  }
  return std::unique_ptr<StateLock>(new StateLock(descriptor));
}

StateLock::~StateLock() { ::close(descriptor_); }

}  // namespace penstock
