#pragma once

// How much handles may hold, in all and per owner.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"

namespace penstock {

// Counts handles and their bytes, and refuses what goes beyond the limits.
//
// Model:     A pair (handles, bytes) for the server and for each owner that has any.
// Threads:   Those of its owner: the HandleStore holds its lock around every call.
// Units:     Bytes; negative never.
// Fails:     RESOURCE_EXHAUSTED / HANDLE_BUDGET naming the limit, its value and what was asked; the
//            counts are then as before.
class HandleBudget {
 public:
  struct Limits {
    int64_t handles = 65'536;
    int64_t handles_per_owner = 10'000;
    int64_t bytes = int64_t{4} << 30;
    int64_t bytes_per_owner = int64_t{2} << 30;
  };
  struct Use {
    int64_t handles = 0;
    int64_t bytes = 0;
  };

  explicit HandleBudget(Limits limits) : limits_(limits) {}

  // Whether there is room for so much now.
  absl::Status Check(const std::string& owner, int64_t handles, int64_t bytes) const;
  // Adds handles and bytes, or refuses both.
  absl::Status Charge(const std::string& owner, int64_t handles, int64_t bytes);
  // Gives back what Charge() took.
  void Refund(const std::string& owner, int64_t handles, int64_t bytes);

  const Limits& limits() const { return limits_; }
  const Use& total() const { return total_; }
  Use OfOwner(const std::string& owner) const;
  // Those that have any.
  const std::map<std::string, Use>& owners() const { return owners_; }

 private:
  const Limits limits_;
  Use total_;
  std::map<std::string, Use> owners_;
};

}  // namespace penstock
