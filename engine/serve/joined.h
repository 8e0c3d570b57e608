#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// The callers who wait for one piece of work, a call and its repetitions, and what it gave once it is done. A failure is not
// kept: the repetition of what had no effect is a first attempt. Guarded by the lock of whoever serves them.
template <typename Answer>
struct Joined {
  using Callback = std::function<void(absl::StatusOr<Answer>)>;

  std::optional<Answer> answer;
  std::vector<Callback> callbacks;
};

}  // namespace penstock
