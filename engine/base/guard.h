#pragma once

// The guard at the root of every thread and around every unit of work: an exception becomes an error there.

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"

namespace penstock {

// A name for one failure, in the caller's error and in the log: random per process, counted within.
std::string NextIncident();

// INTERNAL / BUG with an `incident`; the log line with `detail` has the same one. `work` names what failed: "a timer".
absl::Status Bug(std::string_view work, std::string_view detail);

// The error of the exception that is being handled: RESOURCE_EXHAUSTED / HOST_MEMORY for std::bad_alloc, Bug() for the
// rest, RESOURCE_EXHAUSTED alone where there is no memory to say more: it throws nothing. Only inside a catch clause.
absl::Status CaughtException(std::string_view work);

// Runs `body`, and lets no exception pass: the place for work whose thread has more to do.
//
// Returns:   what `body` returns, which must be made from an absl::Status; OK for a body that returns nothing.
// Fails:     as CaughtException, where `body` throws.
template <typename Body>
auto Guarded(std::string_view work, Body&& body) {
  using Result = std::invoke_result_t<Body>;
  if constexpr (std::is_void_v<Result>) {
    try {
      std::forward<Body>(body)();
      return absl::OkStatus();
    } catch (...) {
      return CaughtException(work);
    }
  } else {
    try {
      return std::forward<Body>(body)();
    } catch (...) {
      return Result(CaughtException(work));
    }
  }
}

}  // namespace penstock
