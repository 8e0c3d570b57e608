#include "engine/exec/inference_turns.h"

#include <algorithm>

#include "engine/exec/run_forecast.h"

namespace penstock {

bool InferenceTurns::Claim(InferenceTicket& ticket, int64_t now) {
  if (ticket.due.load(std::memory_order_acquire)) return true;
  if (share_ <= 0 || now - ticket.accepted_nanos < max_wait_) return false;
  absl::MutexLock lock(&mu_);
  if (taken_ || now < free_at_) return false;
  taken_ = true;
  holder_ = ticket.sequence;
  charged_ = 0;
  ticket.due.store(true, std::memory_order_release);
  return true;
}

void InferenceTurns::Charge(int64_t nanos) {
  absl::MutexLock lock(&mu_);
  charged_ += nanos;
}

void InferenceTurns::Release(const InferenceTicket& ticket, int64_t now) {
  absl::MutexLock lock(&mu_);
  if (!taken_ || holder_ != ticket.sequence) return;
  taken_ = false;
  free_at_ = now + static_cast<int64_t>(static_cast<double>(charged_) / std::min(share_, 1.0));
}

int64_t InferenceTurns::ClaimableAt(const InferenceTicket& ticket) const {
  if (share_ <= 0) return kNever;
  absl::MutexLock lock(&mu_);
  return std::max(ticket.accepted_nanos + max_wait_, free_at_);
}

}  // namespace penstock
