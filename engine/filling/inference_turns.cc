#include "engine/filling/inference_turns.h"

#include <algorithm>

#include "engine/filling/run_forecast.h"

namespace penstock {
namespace {

constexpr double kBurstNanos = 2e9;       // of time, whose share the bucket holds
constexpr int64_t kUnknown = 20'000'000;  // what a run of unknown length is taken to need
constexpr int64_t kMinWait = 500'000;     // of a short run: gaps come and go

int64_t Reserved(const InferenceTicket& ticket) { return ticket.lane_nanos == 0 ? kUnknown : ticket.lane_nanos; }

}  // namespace

InferenceTurns::InferenceTurns(Policy policy) : policy_(policy), balance_(policy.share * kBurstNanos) {}

int64_t InferenceTurns::PatientUntil(const InferenceTicket& ticket) const {
  if (policy_.between_steps) {
    if (!between_steps_.load(std::memory_order_acquire)) return kNever;
    const int64_t began = training_began_.load(std::memory_order_acquire);
    return began > ticket.accepted_nanos ? began : kNever;
  }
  if (policy_.max_wait_nanos > 0) return ticket.accepted_nanos + policy_.max_wait_nanos;
  return ticket.accepted_nanos + (ticket.alone_nanos == 0 ? kUnknown : std::max(kMinWait, ticket.alone_nanos));
}

void InferenceTurns::TrainingBegan(int64_t now) {
  training_began_.store(now, std::memory_order_release);
  between_steps_.store(true, std::memory_order_release);
}

void InferenceTurns::Refill(int64_t now) {
  if (now <= refilled_at_) return;
  const double gained = policy_.share * static_cast<double>(now - refilled_at_);
  balance_ = std::min(policy_.share * kBurstNanos, balance_ + gained);
  refilled_at_ = now;
}

bool InferenceTurns::Claim(InferenceTicket& ticket, int64_t now) {
  if (ticket.due.load(std::memory_order_acquire)) return true;
  if (policy_.share <= 0 || now < PatientUntil(ticket)) return false;
  absl::MutexLock lock(&mu_);
  if (ticket.due.load(std::memory_order_relaxed)) return true;  // another lane was faster
  Refill(now);
  if (balance_ < 0) return false;
  balance_ -= static_cast<double>(Reserved(ticket));
  ticket.due.store(true, std::memory_order_release);
  return true;
}

void InferenceTurns::Charge(const InferenceTicket& ticket, LaneIndex lane, int64_t nanos) {
  absl::MutexLock lock(&mu_);
  charges_[ticket.order.sequence][lane.value()] += nanos;
}

void InferenceTurns::Release(const InferenceTicket& ticket, int64_t now, bool all_known) {
  if (!ticket.due.load(std::memory_order_acquire)) return;
  absl::MutexLock lock(&mu_);
  Refill(now);
  int64_t most = all_known ? 0 : Reserved(ticket);
  for (const auto& [lane, nanos] : charges_[ticket.order.sequence]) most = std::max(most, nanos);
  charges_.erase(ticket.order.sequence);
  balance_ = std::min(policy_.share * kBurstNanos, balance_ + static_cast<double>(Reserved(ticket) - most));
}

int64_t InferenceTurns::ClaimableAt(const InferenceTicket& ticket) const {
  if (policy_.share <= 0) return kNever;
  const int64_t patient = PatientUntil(ticket);
  absl::MutexLock lock(&mu_);
  if (balance_ >= 0 || patient == kNever) return patient;
  const auto refilled = refilled_at_ + static_cast<int64_t>(-balance_ / policy_.share) + 1;
  return std::max(patient, refilled);
}

}  // namespace penstock
