#pragma once

// Which failures are worth another attempt, and when.

#include <cstdint>
#include <optional>
#include <random>

#include "absl/time/time.h"
#include "client/lib/call_error.h"

namespace penstock {

// How long and how often a failed call is tried again.
struct RetryPolicy {
  absl::Duration initial_backoff = absl::Milliseconds(100);
  absl::Duration maximum_backoff = absl::Seconds(5);
  double multiplier = 2.0;
  double jitter = 0.2;                               // of each backoff, to both sides
  absl::Duration give_up_after = absl::Seconds(60);  // from the first failure; 0: never try again
};

// Decides, attempt by attempt, about one call.
//
// Model:     A transport's failure and UNAVAILABLE are tried again after a growing backoff, always with the same
//            request_id. RESOURCE_EXHAUSTED is tried again only if the server said when. Damaged chunks are sent again
//            at once. Anything else is final. The server's delay replaces the backoff; its "never" is obeyed.
// Threads:   one.
// Units:     monotonic nanoseconds of the caller's clock.
class RetryLoop {
 public:
  // `seed` draws the jitter.
  RetryLoop(const RetryPolicy& policy, uint64_t seed) : policy_(policy), random_(seed) {}

  // How long to wait before the next attempt; nothing if the error is final, or the wait would pass either limit.
  std::optional<absl::Duration> NextDelay(const CallError& error, int64_t now_nanos, int64_t deadline_nanos);

 private:
  absl::Duration Backoff();

  const RetryPolicy policy_;
  std::minstd_rand random_;
  int failures_ = 0;
  int64_t first_failure_nanos_ = 0;
};

}  // namespace penstock
