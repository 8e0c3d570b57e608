#pragma once

// One call from its first attempt to its last.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/lib/call_error.h"
#include "client/lib/client_options.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace penstock {

// Runs the attempts of calls: deadline, caller's name, retries, cancellation.
//
// Model:     a set of attempts under way, and whether the client was cancelled.
// Threads:   any method from any thread; Run() blocks its own.
// Lifecycle: outlives every Run(). After CancelAll() each call ends with CANCELLED, now and later.
// Fails:     what the last attempt returned, with the value `request_id` if the call has one.
class CallRunner {
 public:
  // One attempt. It makes its RPC with the context and returns its decoded end.
  using Attempt = std::function<CallError(grpc::ClientContext& context)>;

  explicit CallRunner(const ClientOptions& options);

  // Repeats `attempt` as RetryLoop says. `deadline` bounds all attempts together; so does what is left of the client's
  // time.
  absl::Status Run(absl::Duration deadline, std::string_view request_id, const Attempt& attempt)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Adds who calls to the metadata of a call.
  void AddCaller(grpc::ClientContext* context) const;

  void CancelAll() ABSL_LOCKS_EXCLUDED(mu_);
  bool cancelled() const ABSL_LOCKS_EXCLUDED(mu_);

  // What is left of ClientOptions::total_deadline; below 0 after it.
  absl::Duration left() const;
  Clock* clock() const { return clock_; }

 private:
  CallError RunOnce(int64_t deadline_nanos, const Attempt& attempt) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits; returns false if the client was cancelled meanwhile.
  bool Sleep(absl::Duration delay) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string caller_;
  const std::string traceparent_;
  const RetryPolicy retry_;
  Clock* const clock_;
  const absl::Duration end_;  // of the client's time, on its clock

  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;  // seeds the jitter of each call
  std::set<grpc::ClientContext*> under_way_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
