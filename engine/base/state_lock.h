#pragma once

// Keeps a second daemon away from the same state.

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace penstock {

// Holds a state folder for this process.
//
// Owns:      an open file `lock` in the folder; the kernel frees the lock when the process ends,
//            however it ends.
// Fails:     FAILED_PRECONDITION / STATE_IN_USE if another process holds it.
class StateLock {
 public:
  static absl::StatusOr<std::unique_ptr<StateLock>> Take(const std::string& state_dir);
  ~StateLock();

 private:
  explicit StateLock(int descriptor) : descriptor_(descriptor) {}
  const int descriptor_;
};

}  // namespace penstock
