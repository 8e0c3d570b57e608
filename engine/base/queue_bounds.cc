#include "engine/base/queue_bounds.h"

#include "absl/strings/str_cat.h"
#include "engine/base/caller_share.h"
#include "engine/base/check.h"
#include "engine/base/error.h"

namespace penstock {

absl::Status QueueBounds::Full(absl::StatusCode code, const char* reason, const std::string& whose,
                               const char* limit_name, int64_t limit) const {
  return Error(code, reason,
               absl::StrCat("the ", queue_, " queue is full", whose, ": at most ", limit, " ", limit_name))
      .With("queue", queue_)
      .With("limit", limit_name)
      .With("limit_value", absl::StrCat(limit))
      .With("retry_after_ms", absl::StrCat(limits_.retry_after_ms));
}

absl::Status QueueBounds::Check(const std::string& caller, int64_t bytes) const {
  if (total_.calls >= limits_.calls)
    return Full(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "", "requests", limits_.calls);
  if (bytes > limits_.bytes - total_.bytes)
    return Full(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "", "bytes", limits_.bytes);
  const auto found = callers_.find(caller);
  if (found == callers_.end()) return absl::OkStatus();
  const Use& own = found->second;
  const bool others = callers_.size() > 1;
  const int64_t calls_share = CallerShare(limits_.calls, others);
  const int64_t bytes_share = CallerShare(limits_.bytes, others);
  if (own.calls >= calls_share)
    return Full(absl::StatusCode::kResourceExhausted, "CALLER_QUOTA", " for this caller", "requests", calls_share);
  if (bytes > bytes_share - own.bytes)
    return Full(absl::StatusCode::kResourceExhausted, "CALLER_QUOTA", " for this caller", "bytes", bytes_share);
  return absl::OkStatus();
}

void QueueBounds::Add(const std::string& caller, int64_t bytes) {
  Use& own = callers_[caller];  // may fail, so it is first
  for (Use* use : {&total_, &own}) {
    ++use->calls;
    use->bytes += bytes;
  }
}

void QueueBounds::Remove(const std::string& caller, int64_t bytes) {
  const auto found = callers_.find(caller);
  PENSTOCK_CHECK(found != callers_.end());
  for (Use* use : {&total_, &found->second}) {
    --use->calls;
    use->bytes -= bytes;
  }
  if (found->second.calls == 0) callers_.erase(found);
}

}  // namespace penstock
