#pragma once

// How much of the host's memory is claimed, and by whom.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

// A bound of what large holders of one process take together: each claims before it takes.
//
// Model:     a sum of claims that never passes the limit. A claim is what its holder says that it may take at most, not
//            what it holds at present.
// Owns:      nothing; it outlives its claims.
// Threads:   any method from any thread, also of one claim.
// Units:     bytes.
// Example:   PENSTOCK_ASSIGN_OR_RETURN(auto claim, claims.Take("pipeline gpt", bytes));
class MemoryClaims {
 public:
  // `changed`, which may be empty, is called with the sum of all claims, under the lock.
  explicit MemoryClaims(int64_t limit_bytes, std::function<void(int64_t claimed)> changed = {})
      : limit_bytes_(limit_bytes), changed_(std::move(changed)) {}

  // Is given back when it goes.
  class Claim {
   public:
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    // Fails: as Take, with what was claimed before unchanged.
    absl::Status Resize(int64_t bytes);

   private:
    friend class MemoryClaims;
    Claim(MemoryClaims* claims, std::string holder) : claims_(claims), holder_(std::move(holder)) {}
    MemoryClaims* const claims_;
    const std::string holder_;
  };

  // `holder` is for people: "pipeline gpt".
  //
  // Fails:     RESOURCE_EXHAUSTED / HOST_MEMORY with "limit" and "limit_value", naming the holders of most and what is
  //            left.
  absl::StatusOr<std::unique_ptr<Claim>> Take(std::string holder, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t claimed_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t left_bytes() const { return limit_bytes_ - claimed_bytes(); }

 private:
  absl::Status Set(const Claim* claim, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Refusal(const Claim& claim, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t limit_bytes_;
  const std::function<void(int64_t)> changed_;

  mutable absl::Mutex mu_;
  std::map<const Claim*, int64_t> claims_ ABSL_GUARDED_BY(mu_);
  int64_t claimed_ ABSL_GUARDED_BY(mu_) = 0;
};

// Nine tenths of what this process may use (MachineMemoryBytes): the rest is for memory that is not claimed.
int64_t DefaultMemoryLimit();

}  // namespace penstock
