#include "client/lib/call_runner.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/lib/deadline.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

// Which program this is: what holds an accumulation, beside the caller.
const std::string& ProcessSession() {
  static const std::string session = [] {
    std::random_device random;
    std::string text;
    for (int i = 0; i < 4; ++i) absl::StrAppend(&text, absl::Hex(uint32_t{random()}, absl::kZeroPad8));
    return text;
  }();
  return session;
}

}  // namespace

CallRunner::CallRunner(const ClientOptions& options)
    : caller_(options.caller),
      traceparent_(options.traceparent),
      retry_(options.retry),
      clock_(options.clock ? options.clock : RealClock()),
      end_(absl::Nanoseconds(clock_->NowNanos()) + options.total_deadline) {}

absl::Status CallRunner::Run(absl::Duration deadline, std::string_view request_id, const Attempt& attempt) {
  const int64_t deadline_nanos = DeadlineAfter(clock_, std::min(deadline, left()));
  uint64_t seed = 0;
  {
    absl::MutexLock lock(&mu_);
    seed = static_cast<uint64_t>(getpid()) * 1'000'003 + ++calls_;
  }
  RetryLoop retries(retry_, seed);
  while (true) {
    CallError error = RunOnce(deadline_nanos, attempt);
    if (error.ok()) return absl::OkStatus();
    if (cancelled()) return CancelledByClient();
    const std::optional<absl::Duration> delay = retries.NextDelay(error, clock_->NowNanos(), deadline_nanos);
    if (!delay.has_value()) {
      return request_id.empty() ? error.status : WithValue(std::move(error.status), "request_id", request_id);
    }
    if (!Sleep(*delay)) return CancelledByClient();
  }
}

absl::Duration CallRunner::left() const { return end_ - absl::Nanoseconds(clock_->NowNanos()); }

CallError CallRunner::RunOnce(int64_t deadline_nanos, const Attempt& attempt) {
  grpc::ClientContext context;
  const absl::Duration left = absl::Nanoseconds(deadline_nanos) - absl::Nanoseconds(clock_->NowNanos());
  context.set_deadline(absl::ToChronoTime(absl::Now() + left));
  AddCaller(&context);
  {
    absl::MutexLock lock(&mu_);
    if (cancelled_) return {CancelledByClient(), {}, true};
    under_way_.insert(&context);
  }
  CallError error = attempt(context);
  absl::MutexLock lock(&mu_);
  under_way_.erase(&context);
  return error;
}

void CallRunner::AddCaller(grpc::ClientContext* context) const {
  if (!caller_.empty()) context->AddMetadata("penstock-caller", caller_);
  context->AddMetadata("penstock-session", ProcessSession());
  if (!traceparent_.empty()) context->AddMetadata("traceparent", traceparent_);
}

bool CallRunner::Sleep(absl::Duration delay) {
  absl::MutexLock lock(&mu_);
  const int64_t until = DeadlineAfter(clock_, delay);
  return !clock_->AwaitUntil(&mu_, absl::Condition(&cancelled_), until);
}

void CallRunner::CancelAll() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  // TryCancel only posts; it never calls back into us.
  for (grpc::ClientContext* context : under_way_) context->TryCancel();
}

bool CallRunner::cancelled() const {
  absl::MutexLock lock(&mu_);
  return cancelled_;
}

}  // namespace penstock
