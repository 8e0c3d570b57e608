#pragma once

// The gate before all work: open or not, and how many calls one caller may have in flight.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/observe/metrics_registry.h"

namespace penstock {

// Lets work in, or says why not.
//
// Model:     A gate (starting, open, draining), and the number of calls in flight per caller. A call
//            is in flight from Admit() until its ticket is dropped: by the call once it is answered,
//            and by the work once it has ended, whichever comes later. What control calls do is no
//            work and passes by.
// Owns:      nothing; it outlives its tickets. The registry counts refusals of known pipelines. The ledger, which may be
//            null, holds what each ticket's call takes beside its tensors.
// Threads:   Any method from any thread.
// Fails:     UNAVAILABLE / STARTING or DRAINING; RESOURCE_EXHAUSTED / CALLER_QUOTA naming caller and
//            limit; as MemoryLedger.
class Admission {
 public:
  enum class Gate { kStarting, kOpen, kDraining };
  using Ticket = std::shared_ptr<void>;

  // What a call takes beside its message and tensors: its record and those of its handles, with room to spare.
  static constexpr int64_t kCallBytes = 4096;

  Admission(int64_t calls_per_caller, MetricsRegistry* metrics, MemoryLedger* memory = nullptr)
      : calls_per_caller_(calls_per_caller), metrics_(metrics), memory_(memory) {}

  void SetGate(Gate gate) ABSL_LOCKS_EXCLUDED(mu_);

  // `pipeline` is the one asked for; it only names a counter.
  absl::StatusOr<Ticket> Admit(const std::string& caller, const std::string& pipeline) ABSL_LOCKS_EXCLUDED(mu_);

  // Only the gate: for calls that change what is there but are not counted.
  absl::Status CheckOpen() const ABSL_LOCKS_EXCLUDED(mu_);

  int64_t in_flight() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Leave(const std::string& caller) ABSL_LOCKS_EXCLUDED(mu_);
  void CountRefusal(const std::string& pipeline, RejectReason reason);

  const int64_t calls_per_caller_;
  MetricsRegistry* const metrics_;
  MemoryLedger* const memory_;

  mutable absl::Mutex mu_;
  Gate gate_ ABSL_GUARDED_BY(mu_) = Gate::kStarting;
  std::map<std::string, int64_t> callers_ ABSL_GUARDED_BY(mu_);  // those with any call in flight
  int64_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock
