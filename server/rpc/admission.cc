#include "server/rpc/admission.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {

void Admission::SetGate(Gate gate) {
  absl::MutexLock lock(&mu_);
  gate_ = gate;
}

absl::Status Admission::CheckOpen() const {
  absl::MutexLock lock(&mu_);
  switch (gate_) {
    case Gate::kOpen:
      return absl::OkStatus();
    case Gate::kStarting:
      return Error(absl::StatusCode::kUnavailable, "STARTING", "the daemon is starting");
    case Gate::kDraining:
      return Error(absl::StatusCode::kUnavailable, "DRAINING", "the daemon is draining and takes no new work");
  }
  return absl::OkStatus();
}

absl::StatusOr<Admission::Ticket> Admission::Admit(const std::string& caller, const std::string& pipeline) {
  if (absl::Status open = CheckOpen(); !open.ok()) {
    CountRefusal(pipeline, RejectReason::kDraining);
    return open;
  }
  // Before anything is counted, for it takes memory; a string of its own, so that a move does not copy it.
  absl::StatusOr<MemoryReservation> taken = TakeMemory(memory_, {MemoryClass::kQueues, caller, pipeline}, kCallBytes);
  if (!taken.ok()) {
    CountRefusal(pipeline, RejectReason::kMemory);
    return taken.status();
  }
  auto leave = [this, caller = std::string(caller),
                held = std::make_shared<MemoryReservation>(*std::move(taken))](void*) { Leave(caller); };
  bool full;
  {
    absl::MutexLock lock(&mu_);
    int64_t& calls = callers_[caller];
    full = calls >= calls_per_caller_;
    if (!full) {
      ++calls;
      ++in_flight_;
    }
  }
  if (full) {
    CountRefusal(pipeline, RejectReason::kQuota);
    return Error(absl::StatusCode::kResourceExhausted, "CALLER_QUOTA",
                 absl::StrCat("a caller may have at most ", calls_per_caller_, " calls in flight, and this one has"))
        .With("caller", caller)
        .With("limit", absl::StrCat(calls_per_caller_));
  }
  return Ticket(static_cast<void*>(this), std::move(leave));  // leaves if it throws
}

void Admission::Leave(const std::string& caller) {
  absl::MutexLock lock(&mu_);
  --in_flight_;
  const auto found = callers_.find(caller);
  if (--found->second == 0) callers_.erase(found);
}

void Admission::CountRefusal(const std::string& pipeline, RejectReason reason) {
  if (metrics_ == nullptr) return;
  if (auto counted = metrics_->Find(pipeline); counted != nullptr) counted->rejected[reason].Add(1);
}

int64_t Admission::in_flight() const {
  absl::MutexLock lock(&mu_);
  return in_flight_;
}

}  // namespace penstock
