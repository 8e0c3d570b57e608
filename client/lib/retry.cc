#include "client/lib/retry.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"

namespace penstock {
namespace {

enum class Verdict { kFinal, kBackoff, kOnlyIfAsked, kAtOnce };

Verdict Judge(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kUnavailable || IsTransportFailure(status)) return Verdict::kBackoff;
  if (status.code() == absl::StatusCode::kResourceExhausted) return Verdict::kOnlyIfAsked;
  if (status.code() == absl::StatusCode::kDataLoss && ReasonOf(status) == "CHUNK_CHECKSUM") {
    return Verdict::kAtOnce;
  }
  return Verdict::kFinal;
}

constexpr int kMaximumResends = 8;  // of damaged chunks: beyond that the line, or somebody's memory, is broken

}  // namespace

std::optional<absl::Duration> RetryLoop::NextDelay(const CallError& error, int64_t now_nanos, int64_t deadline_nanos) {
  if (failures_++ == 0) first_failure_nanos_ = now_nanos;
  const Verdict verdict = Judge(error.status);
  if (verdict == Verdict::kFinal || error.retry_forbidden) return std::nullopt;
  if (verdict == Verdict::kOnlyIfAsked && !error.retry_after.has_value()) return std::nullopt;
  if (verdict == Verdict::kAtOnce && failures_ > kMaximumResends) return std::nullopt;

  absl::Duration delay = error.retry_after.value_or(verdict == Verdict::kAtOnce ? absl::ZeroDuration() : Backoff());
  delay = std::max(delay, absl::ZeroDuration());
  if (policy_.give_up_after <= absl::ZeroDuration()) return std::nullopt;
  if (absl::Nanoseconds(now_nanos - first_failure_nanos_) + delay > policy_.give_up_after) return std::nullopt;
  if (delay >= absl::Nanoseconds(deadline_nanos - now_nanos)) return std::nullopt;
  return delay;
}

absl::Duration RetryLoop::Backoff() {
  const double growth = std::pow(policy_.multiplier, failures_ - 1);
  const absl::Duration plain = std::min(policy_.initial_backoff * growth, policy_.maximum_backoff);
  std::uniform_real_distribution<double> spread(1 - policy_.jitter, 1 + policy_.jitter);
  return plain * spread(random_);
}

}  // namespace penstock
